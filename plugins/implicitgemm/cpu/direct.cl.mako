## target[n, pixel] = epilogue(sum over (c, tap) of w[n, c, tap] source[c, pixel * step + tap * spread - pad])
//
// A work item takes bands of rows. It copies the source rows that a band needs into its slot, zeros around them and
// sums' type, so that nothing below knows of borders or dtypes; then, for each block of target channels and of source
// channels, it runs register tiles over the band: PR x PC pixels by NV vectors of channels, a pixel's value broadcast.
// Sums are in the slot between blocks of source channels; after the last one they are transposed to the target's layout.
// If there is one block (NHWC), a tile's sums are written directly to the target.
//
// LANES, V  elements of a vector of sums, its type; NV vectors of a tile, NVL = NV * LANES channels
// PR, PC    rows and columns of a tile; the columns' rest has a separate tile
// R         rows of a band, a multiple of PR
// CB, NCB   source channels of a block, blocks
// ITEMS     work items; PARTS: they share the channel blocks NB of a band
// INTER     0: slot [block][c][tz][row][WP] from NCHW; 1: [block][tz][row][column][CP] from NHWC
// XD XH XW, YD YH YW  source and pixels; ZD ZH ZW target; TD TH TW taps; S? step; D? spread; U? stride in the target
// C, N, G   channels per group, groups; pad and start are arguments
// NONFINITE elements of packed weights before their flags (pack.cl.mako): where one is set, taps whose sources are all in
//           the padding are run as well, because zero times infinity or NaN is NaN
<% px = "CP" if inter else "1" %>
<%def name="multiply(cols, x='xt[')">\
% for v in range(nv):
          const V w${v} = LOADW(wt + ${v * lanes});
% endfor
% for p in range(pr * cols):
          const ACC b${p} = ${x}${(p // cols)} * SH * LINE + ${(p % cols)} * SW * ${px}];
% for v in range(nv):
          a${p}_${v} = b${p} * w${v} + a${p}_${v};
% endfor
% endfor
</%def>

% if straight:
#include <convdispatch/output_lanes.cl>
% endif
<%def name="to(p, cols)">(${p // cols}L * UH * ZW + ${p % cols} * UW) * (N * G)</%def>\
% for cols in widths:
// ${pr} x ${cols} pixels, the taps z0 to z1 - 1, y0 to y1 - 1, x0 to x1 - 1 of count source channels.
inline void tile_${cols}(global const ACC *restrict xs, global const ACC *restrict ws,
                      ${"OUT_PARAMS, long at, int channel, int left, int rows" if straight else "global ACC *restrict ts"},
                      int count, int first, int z0, int z1, int y0, int y1, int x0, int x1) {
% for p in range(pr * cols):
  V ${", ".join(f"a{p}_{v}" for v in range(nv))};
% endfor
% if straight:
% for p in range(pr * cols):
  ${" ".join(f"a{p}_{v} = 0;" for v in range(nv))}
% endfor
% else:
  if (first) {
% for p in range(pr * cols):
    ${" ".join(f"a{p}_{v} = 0;" for v in range(nv))}
% endfor
  } else {
% for p, v in pairs(range(pr * cols), range(nv)):
    a${p}_${v} = LOADW(ts + ${(p // cols)} * YW * NVL + ${(p % cols) * nv * lanes + v * lanes});
% endfor
  }
% endif
% if inter:
#define LINE (WIDTH * CP)
  ONCE for (int tz = z0; tz < z1; ++tz)
    ONCE for (int ty = y0; ty < y1; ++ty) {
      global const ACC *xt = xs + (tz * ROWS + ty * DH) * LINE + x0 * (DW * CP);
      global const ACC *wt = ws + ((tz * TH + ty) * TW + x0) * (count * NVL);
% if runs:
      ONCE for (int i = x0 * C; i < x1 * C; ++i, ++xt, wt += NVL) {  // neighbouring taps are neighbours in memory
${multiply(cols)}\
      }
% else:
      ONCE for (int tx = x0; tx < x1; ++tx, xt += DW * CP)
        ONCE for (int c = 0; c < count; ++c, wt += NVL) {
${multiply(cols, "xt[c + ")}\
        }
% endif
    }
% else:
#define LINE WP
  ONCE for (int c = 0; c < count; ++c, xs += TD * ROWS * WP, ws += TD * TH * TW * NVL)
    ONCE for (int tz = z0; tz < z1; ++tz)
      ONCE for (int ty = y0; ty < y1; ++ty) {
        global const ACC *xt = xs + (tz * ROWS + ty * DH) * WP + x0 * DW;
        global const ACC *wt = ws + ((tz * TH + ty) * TW + x0) * NVL;
        ONCE for (int tx = x0; tx < x1; ++tx, xt += DW, wt += NVL) {
${multiply(cols)}\
        }
      }
% endif
#undef LINE
% if straight:
% for v in range(nv):
  if (left >= ${(v + 1) * lanes}) {
    const V b = ${f"LOADV(bias + channel + {v * lanes})" if bias else "0"};
% for p in range(pr * cols):
    ${f"if ({p // cols} < rows) " if p // cols else ""}put_vector(OUT_ARGS, at + ${to(p, cols)} + ${v * lanes}, a${p}_${v}, b);
% endfor
  } else {
    union { V v; ACC s[LANES]; } u;
% for p in range(pr * cols):
    u.v = a${p}_${v};
    ONCE for (int i = ${v * lanes}; i < ${f"({p // cols} < rows ? left : 0)" if p // cols else "left"}; ++i)
      put_one(OUT_ARGS, at + ${to(p, cols)} + i, u.s[i - ${v * lanes}], ${"LOAD(bias, channel + i)" if bias else "0"});
% endfor
  }
% endfor
% else:
% for p, v in pairs(range(pr * cols), range(nv)):
  STOREW(ts + ${(p // cols)} * YW * NVL + ${(p % cols) * nv * lanes + v * lanes}, a${p}_${v});
% endfor
% endif
}
% endfor

% if fold > 1:
// Sums that are not finite, each from the taps of its own pixel: pixels of a fold share vectors of weights, in which the
// taps of others are zeros, and zero times infinity or NaN is NaN.
__attribute__((noinline))
void unfold_nonfinite(global const ACC *xs, global const ACC *ws, global ACC *sums, int n0, int rows) {
  const int taps = TD * TH * TW, last = rows * YW * NVL;
  int odd = 0;
  for (int i = 0; i < last; i += NVL) odd |= sums[i] * 0 != 0;  // all sums of a pixel read the same source elements
  if (!odd) return;
  ONCE for (int i = 0; i < last; ++i) {
    if (sums[i] * 0 == 0) continue;
    const int n = i % NVL, place = i / NVL, row = place / YW * SH, column = place % YW * SW, j = (n0 + n) / (N / FOLD);
    ACC sum = 0;
    ONCE for (int c = 0; c < C; ++c)
      ONCE for (int tap = 0; tap < taps; ++tap) {
        const int tx = tap % TW, line = row + tap / TW % TH * DH, depth = tap / (TW * TH);
        if (tx < j || tx > j + TW - FOLD) continue;
% if inter:
        const int block = c / CB, count = min(CB, C - block * CB);
        const ACC v = xs[block * SLOT_BLOCK + ((depth * ROWS + line) * WIDTH + column + tx) * CP + c % CB];
        sum += v * ws[((long)block * CB * taps + tap * count + c % CB) * NVL + n];
% else:
        sum += xs[((c * TD + depth) * ROWS + line) * WP + column + tx] * ws[((long)c * taps + tap) * NVL + n];
% endif
      }
    sums[i] = sum;
  }
}
% endif

// The taps t of 0 <= t < taps whose position first + t * spread .. last + t * spread meets 0 .. size - 1: the others
// read zeros alone, and a data gradient has many of them.
inline int taps_from(int last, int spread, int all) { return last >= 0 || all ? 0 : (spread - 1 - last) / spread; }
inline int taps_to(int first, int spread, int size, int taps, int all) {
  return all ? taps : first >= size ? 0 : min(taps, (size - 1 - first) / spread + 1);
}

inline int nonfinite(global const ACC *packed, int block) {
  ACC found = 0;
#if NONFINITE
  ONCE for (int part = 0; part < (C + PACK_C - 1) / PACK_C; ++part) found += packed[NONFINITE + (long)part * (NB * G) + block];
#endif
  return found != 0;
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
          long slots_off, OUT_PARAMS, int pd, int ph, int pw, int ud, int uh, int uw) {
  const int item = get_global_id(0), part = get_global_id(1);
  const int bands = IMAGES * G * YD * BANDS;
  const int block0 = part * NB / PARTS, block1 = (part + 1) * NB / PARTS;
  global ACC *slot = workspace + slots_off + (long)(item * PARTS + part) * SLOT;
  global ACC *sums = slot + SLOT_X;
  packed += packed_off;
  int band = (int)((long)item * bands / ITEMS);
  const int last = (int)((long)(item + 1) * bands / ITEMS);
  for (; band < last; ++band) {
    const int y0 = band % BANDS * R, z = band / BANDS % YD, g = band / (BANDS * YD) % G, image = band / (BANDS * YD * G);
    const int rows = min(R, YH - y0);
    stage(slot, x, image, g, z, y0, pd, ph, pw);
    for (int block = block0; block < block1; ++block) {
      global const ACC *ws = packed + ((long)g * NB + block) * WBLOCK;
      global const ACC *xs = slot;
      const int all = nonfinite(packed, g * NB + block);
      const int tz0 = taps_from(z * SD - pd, DD, all), tz1 = EMPTY ? 0 : taps_to(z * SD - pd, DD, XD, TD, all);
      ONCE for (int cb = 0; cb < NCB; ++cb) {
        const int count = min(CB, C - cb * CB);
        ONCE for (int row = 0; row < rows; row += PR) {
          global const ACC *xr = xs + row * SH * ${"(WIDTH * CP)" if inter else "WP"};
% if straight:
          const long at = ((((long)image * ZD + z * UD + ud) * ZH + (y0 + row) * UH + uh) * ZW + uw) * (N * G) + g * N + block * NVL;
% else:
          global ACC *tr = sums + row * YW * NVL;
% endif
          const int row0 = (y0 + row) * SH - ph;
          const int ty0 = taps_from(row0 + (PR - 1) * SH, DH, all), ty1 = taps_to(row0, DH, XH, TH, all);
          int column = 0;
% for cols in widths:
          ${"ONCE for (; column + PC <= YW; column += PC)" if loop.first else ""} {
            const int first = column * SW - pw;
            const int tx0 = taps_from(first + ${cols - 1} * SW, DW, all), tx1 = taps_to(first, DW, XW, TW, all);
            tile_${cols}(xr + column * SW * ${px}, ws, ${"OUT_ARGS, at + (long)column * UW * (N * G), g * N + block * NVL, N - block * NVL, rows - row" if straight else "tr + column * NVL"}, count, cb == 0, tz0, tz1, ty0, ty1, tx0, tx1);
          }
% endfor
        }
        ws += (long)CB * (TD * TH * TW * NVL);
        xs += SLOT_BLOCK;
      }
% if fold > 1:
      unfold_nonfinite(slot, packed + ((long)g * NB + block) * WBLOCK, sums, block * NVL, rows);
% endif
% if not straight:
      finish(OUT_ARGS, sums, image, g, block * NVL, z, y0, rows, ud, uh, uw);
% endif
    }
  }
}
<%! from itertools import product as pairs %>
