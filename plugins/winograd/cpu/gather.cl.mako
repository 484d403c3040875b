## target[image, n, pixel] = epilogue((AT_h m AT_w^T)[pixel]) of LANES channels n of a strip's tiles.
##
## A strip's rows of targets are put together as [row][column][LANES]; NHWC writes a column's vector unchanged, NCHW
## transposes squares of LANES x LANES, so that neighbours along w are written together.
#include <convdispatch/output_lanes.cl>
// Element e of tile i is at m[e * e_step + i * tile_step].
__attribute__((noinline))
void gather(OUT_PARAMS, global const ACC *restrict m, long e_step, int tile_step, local ACC *restrict copy, int strip, int g, int n) {
  const int part = strip % ACROSS, ty = strip / ACROSS % TILES_H, image = strip / (ACROSS * TILES_H);
  const int y0 = ty * ${tile_h}, x0 = part * ${strip * tile_w};
  const int rows = min(${tile_h}, ${h} - y0), columns = min(${strip * tile_w}, ${w} - x0);
  ONCE for (int i = 0; i * ${tile_w} < columns; ++i, m += tile_step) {
    const int wanted = columns - i * ${tile_w};
% if nhwc:
    ONCE for (int row = 0; row < rows; ++row)  // the tile's pixels are prefetched before they are computed
      ONCE for (int j = 0; j < min(wanted, ${tile_w}); ++j)
        PREFETCH(out + (((long)image * ${h} + y0 + row) * ${w} + x0 + i * ${tile_w} + j) * ${n_ * groups} + g * ${n_} + n, 1);
% endif
    local ACC *to = copy + i * ${tile_w} * LANES;
${pass_along_h(program_h, patch_h, tile_h, patch_w, patch_w, "LOADW(m + ({row} + j) * e_step)") if patch_h > 1 else ""}\
    ONCE for (int k = 0; k < rows; ++k, to += columns * LANES) {
% for j in range(patch_w):
      const V d${j} = ${f"mid[k * {patch_w} + {j}]" if patch_h > 1 else f"LOADW(m + {j} * e_step)"};
% endfor
${program_w}\
% for j in range(tile_w):
      ${f"if ({j} < wanted) " if j else ""}STOREL(to + ${j} * LANES, o${j});
% endfor
    }
  }
% if nhwc:
  ONCE for (int row = 0; row < rows; ++row) {
    long p = (((long)image * ${h} + y0 + row) * ${w} + x0) * ${n_ * groups} + g * ${n_} + n;
    ONCE for (int i = 0; i < columns; ++i, p += ${n_ * groups}, copy += LANES)
      if (n + LANES <= ${n_}) put_vector(OUT_ARGS, p, LOADL(copy), ${f"LOADV(bias + g * {n_} + n)" if bias else "0"});
      else ONCE for (int k = 0; k < ${n_} - n; ++k) put_one(OUT_ARGS, p + k, copy[k], ${f"LOAD(bias, g * {n_} + n + k)" if bias else "0"});
  }
% else:
% if across == 1:
  const int runs = 1, run = rows * columns;  // the rows are contiguous in memory
% else:
  const int runs = rows, run = columns;
% endif
  ONCE for (int row = 0; row < runs; ++row) {
    const long p = (((long)image * ${groups} + g) * ${n_} + n) * ${h * w}L + (long)(y0 + row) * ${w} + x0;
    int i = 0;
    ONCE for (; i + LANES <= run; i += LANES, copy += LANES * LANES) {
      transpose(copy);
      ONCE for (int k = 0; k < min(LANES, ${n_} - n); ++k)
        put_vector(OUT_ARGS, p + k * ${h * w}L + i, LOADL(copy + k * LANES), ${f"LOAD(bias, g * {n_} + n + k)" if bias else "0"});
    }
    ONCE for (; i < run; ++i, copy += LANES)
      ONCE for (int k = 0; k < min(LANES, ${n_} - n); ++k)
        put_one(OUT_ARGS, p + k * ${h * w}L + i, copy[k], ${f"LOAD(bias, g * {n_} + n + k)" if bias else "0"});
  }
% endif
}
