## staged: whether a band's source rows are copied to a slot; else taps are read from x
## y[n, pixel] = epilogue(sum over (c, tap) of w[n, c, tap] x[c, pixel * step + tap * spread - pad]): few channels, NCHW
//
// A work item takes bands of rows and computes tiles of MR target channels by a few vectors of pixels: weights are
// broadcast from w, sums are stored without a transposition. A row's last vector ends at the row's end and computes some
// pixels twice.
% if staged:
// The source rows of a band are copied to the work item's slot (planes.cl.mako), where neighbouring pixels of a row are
// neighbours whatever the step.
% else:
// Nothing is copied: a tap of a vector of pixels is one or two vectors of the source's row, at literal offsets, whose
// lanes are moved where a row ends or has a stride. Rows outside of the source are omitted.
% endif
//
// LANES, V, KEPT  elements of a vector of sums, its type, integers of its size
// MR, BLOCKS  channels of a tile, blocks of them; R, BANDS rows of a band, bands; ITEMS work items
// C, N        source and target channels per group, GROUPS of them; G source channels in all; P? zeros before the source
// SLOT, PLANE elements of a slot and of one channel's part of it
#include <convdispatch/output_lanes.cl>
<%
def store(at, value, first):
    if first and rereads:  # the result or the residual must be read once
        return f"""{{
    union {{ V v; ACC s[LANES]; }} u;
    u.v = {value};
    ONCE for (int lane = {first}; lane < LANES; ++lane) put_one(OUT_ARGS, {at} + lane, u.s[lane], b);
  }}"""
    return f"put_vector(OUT_ARGS, {at}, {value}, b);"
%>
% for rows in heights:
% for function, tile in tiles.items():
<% starts = tile.starts %>\
// ${rows} channels by the vectors of pixels from ${", ".join(map(str, starts))} on.
__attribute__((noinline))
% if staged:
void ${function}_${rows}(global const ACC *restrict xs, global const REAL *restrict ws, OUT_PARAMS, long p, int n) {
% else:
// xs: the band's first pixel, tap (0, 0).
void ${function}_${rows}(global const REAL *restrict xs, global const REAL *restrict ws, OUT_PARAMS, long p, int n, int iz, int iy) {
% endif
% for i in range(rows):
  V ${", ".join(f"a{i}_{j} = 0" for j in range(len(starts)))};
% endfor
  ONCE for (int c = 0; c < C; ++c, xs += ${"PLANE" if staged else "XD * XH * XW"})
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int ty = 0; ty < TH; ++ty, ws += TW) {
% if staged:
        global const ACC *xt = xs + ty * DH % SH * (SW * PART) + (tz * PROWS + ty * DH / SH) * WP;
% else:
        if ((uint)(iz + tz * DD) >= XD || (uint)(iy + ty * DH) >= XH) continue;
        global const REAL *xt = xs + (tz * DD * XH + ty * DH) * XW;
% for window in tile.windows:
        const V ${name(window)} = LOADV(xt + (${window}));
% endfor
% endif
% for t in range(taps_w):
<% live = [j for j in range(len(starts)) if staged or tile.reads[t][j]] %>\
        {
% for j in live:
% if staged:
          const V x${j} = LOADW(xt + ${t * spread_w % step_w} * PART + ${t * spread_w // step_w + starts[j]});
% else:
<% steps, value = gather_lanes(tile.reads[t][j], "x", f"m{j}") %>\
% for step in steps:
          ${step}
% endfor
          const V v${j} = ${value};
% endif
% endfor
% for i in range(rows):
          const ACC w${i} = LOAD(ws, ${i}L * (C * TD * TH * TW) + ${t});
% for j in live:
          a${i}_${j} = w${i} * ${"x" if staged else "v"}${j} + a${i}_${j};
% endfor
% endfor
        }
% endfor
      }
% for i in range(rows):
  {
    const ACC b = ${f"LOAD(bias, n + {i})" if bias else "0"};
% for j, start in enumerate(starts):
    ${store(f"p + {i} * ((long)YD * YH * YW) + {start}", f"a{i}_{j}", tile.first if j == len(starts) - 1 else 0)}
% endfor
  }
% endfor
}
% endfor
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
% if staged:
void conv(global const REAL *restrict x, global const REAL *restrict w, global ACC *workspace, OUT_PARAMS,
          int pd, int ph, int pw) {
% else:
void conv(global const REAL *restrict x, global const REAL *restrict w, OUT_PARAMS) {
% endif
  const int item = get_global_id(0), work = IMAGES * GROUPS * YD * BANDS;
% if staged:
  global ACC *slot = workspace + (long)item * SLOT;
% endif
  const int last = (int)((long)(item + 1) * work / ITEMS);
  ONCE for (int job = (int)((long)item * work / ITEMS); job < last; ++job) {
    const int y0 = job % BANDS * R, z = job / BANDS % YD, g = job / (BANDS * YD) % GROUPS, image = job / (BANDS * YD * GROUPS);
% if staged:
    const int rows = min(R, YH - y0);
    ONCE for (int c = 0; c < C; ++c) stage(slot + c * PLANE, x, image, g * C + c, z, y0, pd, ph, pw);
% else:
    const int rows = min(R, YH - y0), iz = z * SD - PD;
% endif
    ONCE for (int block = 0; block < BLOCKS; ++block) {
      const int n = g * N + block * MR;
      global const REAL *ws = w + (long)n * (C * TD * TH * TW);
% if staged:
      ONCE for (int row = 0; row < rows; ++row) {
        const long p = (((long)image * (N * GROUPS) + n) * YD + z) * ((long)YH * YW) + (y0 + row) * YW;
        global const ACC *xs = slot + row * WP;
% else:
      ONCE for (int row = y0; row < y0 + rows; ++row) {
        const long p = (((long)image * (N * GROUPS) + n) * YD + z) * ((long)YH * YW) + row * YW;
        const int iy = row * SH - PH;
        global const REAL *xs = x + (((long)image * G + g * C) * XD + iz) * ((long)XH * XW) + (long)iy * XW;
% endif
% for rows in heights:
        ${"if (block * MR + MR <= N)" if loop.first and len(heights) > 1 else "else" if len(heights) > 1 else ""} {
% if staged:
          int q = 0;
% if whole:
          ONCE for (; q < ${whole}; q += ${wide}) tile_0_${rows}(xs + q, ws, OUT_ARGS, p + q, n);
% endif
% if len(tiles) > (1 if whole else 0):
          tile_${len(tiles) - 1}_${rows}(xs + q, ws, OUT_ARGS, p + q, n);
% endif
% else:
% for function, first, end, apart in calls:
% if apart:
          ONCE for (int q = ${first}; q <= ${end}; q += ${apart})
            ${function}_${rows}(xs + q * SW, ws, OUT_ARGS, p + q, n, iz, iy);
% else:
          ${function}_${rows}(xs + ${first} * SW, ws, OUT_ARGS, p + ${first}, n, iz, iy);
% endif
% endfor
% endif
        }
% endfor
      }
    }
  }
}
