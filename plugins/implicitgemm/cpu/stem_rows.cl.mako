## y[n, place] = epilogue(sum over (c, tap) of w[n, c, tap] x[c, place * step + tap * spread - pad]): few channels, NCHW
//
// As stem.cl.mako, but nothing is copied: a tap of a vector of places is one or two vectors of the source's row, at
// literal offsets, whose lanes are moved where a row ends or has a stride. Rows outside of the source are left out.
//
// MR, BLOCKS  channels of a tile, blocks of them; R, BANDS rows of a band, bands; ITEMS work items
// C, N        source and target channels a group, GROUPS of them; G source channels in all
// P?          zeros before the source
// LANES, V    elements of a vector of sums, its type; KEPT: integers of its size
#include <convdispatch/output_lanes.cl>
#define AS_(type) as_##type
#define AS(type) AS_(type)
#define AS_V AS(V)
#define AS_KEPT AS(KEPT)
<%
def store(at, value, first):
    if first and rereads:  # what holds or beside the result must be read once
        return f"""{{
    union {{ V v; ACC s[LANES]; }} u;
    u.v = {value};
    ONCE for (int lane = {first}; lane < LANES; ++lane) put_one(OUT_ARGS, {at} + lane, u.s[lane], b);
  }}"""
    return f"put_vector(OUT_ARGS, {at}, {value}, b);"
%>
% for rows in heights:
% for tile, function in tiles.items():
// ${rows} channels by the vectors of places from ${", ".join(map(str, tile.starts))} on. xs: the band's first place, tap (0, 0).
__attribute__((noinline))
void ${function}_${rows}(global const REAL *restrict xs, global const REAL *restrict ws, OUT_PARAMS, long p, int n, int iz, int iy) {
% for i in range(rows):
  V ${", ".join(f"a{i}_{j} = 0" for j in range(len(tile.starts)))};
% endfor
  ONCE for (int c = 0; c < C; ++c, xs += XD * XH * XW)
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int ty = 0; ty < TH; ++ty, ws += TW) {
        if ((uint)(iz + tz * DD) >= XD || (uint)(iy + ty * DH) >= XH) continue;
        global const REAL *xt = xs + (tz * DD * XH + ty * DH) * XW;
% for window in tile.windows:
        const V ${name(window)} = LOADV(xt + (${window}));
% endfor
% for t, reads in enumerate(tile.reads):
        {
% for j, read in enumerate(reads):
% if read:
<% steps, value = moved(read, "x", f"m{j}") %>\
% for step in steps:
          ${step}
% endfor
          const V v${j} = ${value};
% endif
% endfor
% for i in range(rows):
          const ACC w${i} = LOAD(ws, ${i}L * (C * TD * TH * TW) + ${t});
% for j, read in enumerate(reads):
% if read:
          a${i}_${j} = w${i} * v${j} + a${i}_${j};
% endif
% endfor
% endfor
        }
% endfor
      }
% for i in range(rows):
  {
    const ACC b = ${f"LOAD(bias, n + {i})" if bias else "0"};
% for j, start in enumerate(tile.starts):
    ${store(f"p + {i} * ((long)YD * YH * YW) + {start}", f"a{i}_{j}", tile.first if j == len(tile.starts) - 1 else 0)}
% endfor
  }
% endfor
}
% endfor
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const REAL *restrict w, OUT_PARAMS) {
  const int item = get_global_id(0), work = IMAGES * GROUPS * YD * BANDS;
  const int last = (int)((long)(item + 1) * work / ITEMS);
  ONCE for (int job = (int)((long)item * work / ITEMS); job < last; ++job) {
    const int y0 = job % BANDS * R, z = job / BANDS % YD, g = job / (BANDS * YD) % GROUPS, image = job / (BANDS * YD * GROUPS);
    const int rows = min(R, YH - y0), iz = z * SD - PD;
    ONCE for (int block = 0; block < BLOCKS; ++block) {
      const int n = g * N + block * MR;
      global const REAL *ws = w + (long)n * (C * TD * TH * TW);
      ONCE for (int row = y0; row < y0 + rows; ++row) {
        const long p = (((long)image * (N * GROUPS) + n) * YD + z) * ((long)YH * YW) + row * YW;
        const int iy = row * SH - PH;
        global const REAL *xs = x + (((long)image * G + g * C) * XD + iz) * ((long)XH * XW) + (long)iy * XW;
% for rows in heights:
        ${"if (block * MR + MR <= N)" if loop.first and len(heights) > 1 else "else" if len(heights) > 1 else ""} {
% for function, first, end, apart in calls:
% if apart:
          ONCE for (int q = ${first}; q <= ${end}; q += ${apart})
            ${function}_${rows}(xs + q * SW, ws, OUT_ARGS, p + q, n, iz, iy);
% else:
          ${function}_${rows}(xs + ${first} * SW, ws, OUT_ARGS, p + ${first}, n, iz, iy);
% endif
% endfor
        }
% endfor
      }
    }
  }
}
