## v[e, tile, c] = (M_h patch M_w^T)[e] of LANES channels c of a strip's tiles: the transform of a source into products.
##
## The patches of a strip overlap: their rows are copied once, as [row][column][LANES] in the sums' type with zeros round
## them, so that nothing below knows of borders, dtypes or layouts; each tile is then two passes of straight-line code.
##
## name, program_h, program_w   this source's name, and the products with M_h and M_w
## patch_h, patch_w    size of a patch; out_h, out_w of a transformed one; step_w tiles' distance
## store               STOREW, or STREAMW past the caches
## h, w, c, groups     the source's planes and channels per group
<%
width = (strip - 1) * step_w + patch_w
total = images * groups * c * h * w
ragged = c % lanes
%>\
inline void copy_${name}(local ACC *restrict to, global const REAL *restrict x, int image, int g, int c0, int iy0, int ix0) {
  const int begin = clamp(-ix0, 0, ${width}), end = clamp(${w} - ix0, begin, ${width});
  ONCE for (int row = 0; row < ${patch_h}; ++row, to += ${width} * LANES) {
    const int iy = iy0 + row, inside = (uint)iy < ${h};
    const int from = inside ? begin : ${width}, last = inside ? end : ${width};
    ONCE for (int i = 0; i < from; ++i) STOREL(to + i * LANES, (V)(0));
% if nhwc:
    const long at = (((long)image * ${h} + iy) * ${w} + ix0) * ${c * groups} + g * ${c} + c0;
    ONCE for (int i = from; i < last; ++i) {
      const long p = at + i * ${c * groups}L;
% if ragged:
      if (p + LANES > ${total}L) {  // the tensor's last elements
        ONCE for (int k = 0; k < LANES; ++k) {
          const ACC v = LOAD(x, p + min(k, ${c} - 1 - c0));
          to[i * LANES + k] = c0 + k < ${c} ? v : (ACC)0;
        }
        continue;
      }
% endif
      STOREL(to + i * LANES, LOADV(x + p));
    }
% else:
    const long plane = ((long)image * ${groups} + g) * ${c}, at = (long)iy * ${w} + ix0;
    ONCE for (int i = from; i < last; i += LANES) {
      // Channels beyond the last one repeat it; their results are unused.
      if ((plane + min(c0 + LANES - 1, ${c - 1})) * ${h * w}L + at + i + LANES <= ${total}L) {
        // Columns from ``last`` on are overwritten by the next ones.
        ONCE for (int k = 0; k < LANES; ++k)
          STOREL(to + (i + k) * LANES, LOADV(x + (plane + ${f"min(c0 + k, {c - 1})" if ragged else "c0 + k"}) * ${h * w}L + at + i));
        transpose(to + i * LANES);
      } else {  // the tensor's last elements
        ONCE for (int q = i; q < min(i + LANES, last); ++q)
          ONCE for (int k = 0; k < LANES; ++k)
            to[q * LANES + k] = LOAD(x, (plane + min(c0 + k, ${c - 1})) * ${h * w}L + at + q);
      }
    }
% endif
    ONCE for (int i = last; i < ${width}; ++i) STOREL(to + i * LANES, (V)(0));
  }
}

// Element e of tile i goes to v[e * e_step + i * tile_step].
__attribute__((noinline))
void spread_${name}(global ACC *restrict v, long e_step, int tile_step, local ACC *restrict copy,
                    global const REAL *restrict x, int strip, int g, int c0) {
  const int part = strip % ACROSS, ty = strip / ACROSS % TILES_H, image = strip / (ACROSS * TILES_H);
  copy_${name}(copy, x, image, g, c0, ty * ${step_h} - (${pad_h}), part * ${strip * step_w} - (${pad_w}));
% if nhwc:
  const long next = (((long)image * ${h} + ty * ${step_h} - (${pad_h})) * ${w} + part * ${strip * step_w} - (${pad_w})) * ${c * groups} + g * ${c}
                    + (c0 + LANES < ${c} ? c0 + LANES : ${strip * step_w * c * groups});
% endif
  ONCE for (int i = 0; i < ${strip}; ++i, v += tile_step, copy += ${step_w} * LANES) {
% if nhwc:
    ONCE for (int k = 0; k < ${patch_h}; ++k)  // the next channels of the tile's patch, or the next strip
      ONCE for (int j = 0; j < ${step_w}; ++j) PREFETCH(x + next + (k * ${w}L + i * ${step_w} + j) * ${c * groups}, 0);
% endif
${pass_along_h(program_h, patch_h, out_h, patch_w, width, "LOADL(copy + ({row} + j) * LANES)") if patch_h > 1 else ""}\
    ONCE for (int k = 0; k < ${out_h}; ++k) {
% for j in range(patch_w):
      const V d${j} = ${f"mid[k * {patch_w} + {j}]" if patch_h > 1 else f"LOADL(copy + {j} * LANES)"};
% endfor
${program_w}\
% for j in range(out_w):
      ${store}(v + (k * ${out_w} + ${j}) * e_step, o${j});
% endfor
    }
  }
}
