## target[image, g, place] = epilogue(sum over tap of w[g, tap] source[image, g, place * step + tap * spread - pad])
//
// A work item takes bands of rows of some channels. It copies the source rows of a band into its slot, zeros round
// them, and computes from there without a test.
// NHWC: slot [tz][row][column][CB] for CB channels; a vector is LANES channels, a tile P places of a row.
// NCHW: slot [row % SH][column % SW][tz][row / SH][WP] for one channel, so that neighbouring places of a row are
// neighbours whatever the step; a vector is LANES places counted through the rows, row ends' rests are computed and
// dropped.
//
// LANES, V   elements of a vector of sums, its type
// R          rows of a band; CB channels of a work item at a time (NHWC)
// P          places of a tile (NHWC), vectors of a tile (NCHW)
// ITEMS      work items; the bands and channels are dealt to them in runs
// X? Y? Z? T? S? D? U?  source, places, target, taps, step, spread, stride in the target; G channels
#include <convdispatch/output_lanes.cl>
% if inter:

// P neighbouring places of one row, LANES channels.
% for cols in widths:
inline void tile_${cols}(global const ACC *restrict xs, global const ACC *restrict ws, OUT_PARAMS, long p, int c, int count) {
  V ${", ".join(f"a{i} = 0" for i in range(cols))};
  ONCE for (int tz = 0; tz < TD; ++tz)
    ONCE for (int ty = 0; ty < TH; ++ty, ws += TW * CT) {
      global const ACC *xt = xs + (tz * ROWS + ty * DH) * (WIDTH * CB);
% if taps_w <= 7:
% for t in range(taps_w):
      const V w${t} = LOADW(ws + ${t} * CT);
% endfor
<% reads = sorted({i * step_w + t * spread_w for i in range(cols) for t in range(taps_w)}) %>\
% for q in reads:
      {
        const V x0 = LOADW(xt + ${q} * CB);
% for i in range(cols):
% for t in range(taps_w):
% if i * step_w + t * spread_w == q:
        a${i} = x0 * w${t} + a${i};
% endif
% endfor
% endfor
      }
% endfor
% else:
      ONCE for (int tx = 0; tx < TW; ++tx, xt += DW * CB) {
        const V w0 = LOADW(ws + tx * CT);
% for i in range(cols):
        a${i} = LOADW(xt + ${i} * SW * CB) * w0 + a${i};
% endfor
      }
% endif
    }
  if (count >= LANES) {
% if bias:
    const V b = LOADV(bias + c);
% else:
    const V b = 0;
% endif
% for i in range(cols):
    put_vector(OUT_ARGS, p + ${i} * UW * G, a${i}, b);
% endfor
  } else {
    union { V v; ACC s[LANES]; } u;
% for i in range(cols):
    u.v = a${i};
    ONCE for (int n = 0; n < count; ++n) put_one(OUT_ARGS, p + ${i} * UW * G + n, u.s[n], ${"LOAD(bias, c + n)" if bias else "0"});
% endfor
  }
}
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
               long slots_off, OUT_PARAMS, int pd, int ph, int pw, int ud, int uh, int uw) {
  const int item = get_global_id(0);
  const int work = IMAGES * YD * BANDS * CHUNKS;
  global ACC *slot = workspace + slots_off + (long)item * SLOT;
  packed += packed_off;
  const int last = (int)((long)(item + 1) * work / ITEMS);
  ONCE for (int job = (int)((long)item * work / ITEMS); job < last; ++job) {
    const int c0 = job % CHUNKS * CB, channels = min(CB, G - c0);
    const int band = job / CHUNKS, y0 = band % BANDS * R, z = band / BANDS % YD, image = band / (BANDS * YD);
    const int rows = min(R, YH - y0);
    stage(slot, x, image, c0, channels, z, y0, pd, ph, pw);
    ONCE for (int c = 0; c < channels; c += LANES) {
      global const ACC *ws = packed + c0 + c;
      const int count = channels - c;
      ONCE for (int row = 0; row < rows; ++row) {
        global const ACC *xr = slot + row * SH * (WIDTH * CB) + c;
        long p = ((((long)image * ZD + z * UD + ud) * ZH + (y0 + row) * UH + uh) * ZW + uw) * G + c0 + c;
        int column = 0;
        ONCE for (; column + P <= YW; column += P, p += P * UW * G)
          tile_${widths[0]}(xr + column * SW * CB, ws, OUT_ARGS, p, c0 + c, count);
% if len(widths) > 1:
        tile_${widths[1]}(xr + column * SW * CB, ws, OUT_ARGS, p, c0 + c, count);
% endif
      }
    }
  }
}
% else:

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
               long slots_off, OUT_PARAMS, int pd, int ph, int pw, int ud, int uh, int uw) {
  const int item = get_global_id(0);
  const int work = IMAGES * G * YD * BANDS;
  global ACC *slot = workspace + slots_off + (long)item * SLOT;
  global ACC *sums = slot + SLOT_X;
  packed += packed_off;
  const int last = (int)((long)(item + 1) * work / ITEMS);
  ONCE for (int job = (int)((long)item * work / ITEMS); job < last; ++job) {
    const int y0 = job % BANDS * R, z = job / BANDS % YD, g = job / (BANDS * YD) % G, image = job / (BANDS * YD * G);
    const int rows = min(R, YH - y0);
    stage(slot, x, image, g, 1, z, y0, pd, ph, pw);
    global const ACC *ws = packed + g * (TD * TH * TW);
    const int flat = (rows - 1) * WP + YW;
    ONCE for (int q = 0; q < flat; q += ${vectors} * LANES) {
      V ${", ".join(f"a{i} = 0" for i in range(vectors))};
      ONCE for (int tz = 0; tz < TD; ++tz) {
        global const ACC *xt = slot + tz * (PROWS * WP) + q;
% for ty in range(taps_h):
% for t in range(taps_w):
<%
dy, dx = ty * spread_h, t * spread_w
at = f"{(dy % step_h * step_w + dx % step_w)} * PART + {dy // step_h} * WP + {dx // step_w}"
%>\
        {
          const ACC w0 = ws[tz * (TH * TW) + ${ty * taps_w + t}];
% for i in range(vectors):
          a${i} = w0 * LOADW(xt + ${at} + ${i} * LANES) + a${i};
% endfor
        }
% endfor
% endfor
      }
% for i in range(vectors):
      STOREW(sums + q + ${i} * LANES, a${i});
% endfor
    }
% if bias:
    const ACC b = LOAD(bias, g);
% else:
    const ACC b = 0;
% endif
    ONCE for (int row = 0; row < rows; ++row) {
      const long p = ((((long)image * G + g) * ZD + z * UD + ud) * ZH + (y0 + row) * UH + uh) * ZW + uw;
      int column = 0;
% if dense:
      ONCE for (; column + LANES <= YW; column += LANES) put_vector(OUT_ARGS, p + column, LOADW(sums + row * WP + column), b);
% endif
      ONCE for (; column < YW; ++column) put_one(OUT_ARGS, p + column * UW, sums[row * WP + column], b);
    }
  }
}
% endif

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off, int fd, int fh, int fw) {
  packed += packed_off;
  ONCE for (int g = 0; g < CT; ++g)
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int ty = 0; ty < TH; ++ty)
        ONCE for (int tx = 0; tx < TW; ++tx) {
          const int tap = (tz * TH + ty) * TW + tx, at = ((fd + tz * KSD) * KH_ + fh + ty * KSH) * KW_ + fw + tx * KSW;
          // Weights: [tap][channel], channels rounded up to vectors, for NHWC; [channel][tap] for NCHW.
          packed[${"tap * CT + g" if inter else "g * (TD * TH * TW) + tap"}] = EMPTY || g >= G ? (ACC)0 : LOAD(w, g * WG + at);
        }
}
