## target[image, pixel, g] = epilogue(sum over tap of w[g, tap] source[image, pixel * step + tap * spread - pad, g])
//
// NHWC: a vector is LANES channels, a tile P pixels of a row. Nothing is copied: each vector of the source that a tile sees
// is read once a row of taps. Rows of taps outside the source are omitted; a tile at a row's end tests each column, for
// all lanes together. Tiles go down the rows of a band, so that rows which several taps see are near.
//
// LANES, V   elements of a vector of sums, its type; no more than there are channels
// R, CB      rows of a band and channels that a work item takes at a time; BANDS, CHUNKS: how many there are
// ITEMS      work items; the bands and channels are divided among them in contiguous runs
// EMPTY      1: no tap reaches the source
// X? Y? Z? T? S? D? U?  source, pixels, target, taps, step, spread, stride in the target; G channels, CT in packed weights
#include <convdispatch/output_lanes.cl>

// The last vector ends at the last channel: lanes that it shares with the previous vector are computed twice, and written
// twice unless they are added to. ``first``: the first lane that no other vector has.
inline void put_from(OUT_PARAMS, long at, V v, V b, int first) {
#if RESIDUAL || ACCUMULATE
  if (first) {
    union { V v; ACC s[LANES]; } sum, own;
    sum.v = v, own.v = b;
    ONCE for (int n = first; n < LANES; ++n) put_one(OUT_ARGS, at + n, sum.s[n], own.s[n]);
    return;
  }
#endif
  put_vector(OUT_ARGS, at, v, b);
}

% for cols, edge in tiles:
// Places of one row, LANES channels from c on. xs: channel c of the image; p: the first pixel's channel c in the target.
inline void tile_${cols}${"_edge" if edge else ""}(global const REAL *restrict xs, global const ACC *restrict ws, OUT_PARAMS,
    long p, int c, int first, int iz, int iy, int ix) {
  V ${", ".join(f"a{i} = 0" for i in range(cols))};
  ONCE for (int tz = 0; tz < (EMPTY ? 0 : TD); ++tz) {
    if ((uint)(iz + tz * DD) >= XD) continue;
    ONCE for (int ty = 0; ty < TH; ++ty) {
      if ((uint)(iy + ty * DH) >= XH) continue;
      global const REAL *xt = xs + (((long)(iz + tz * DD) * XH + iy + ty * DH) * XW + ix) * G;
      global const ACC *wt = ws + (tz * TH + ty) * (TW * CT);
% if taps_w <= 7:
% for t in range(taps_w):
      const V w${t} = LOADW(wt + ${t} * CT);
% endfor
% for q in sorted({i * step_w + t * spread_w for i in range(cols) for t in range(taps_w)}):
      ${f"if ((uint)(ix + {q}) < XW) " if edge else ""}{
        const V v = LOADV(xt + ${q}L * G);
% for i in range(cols):
% for t in range(taps_w):
% if i * step_w + t * spread_w == q:
        a${i} = v * w${t} + a${i};
% endif
% endfor
% endfor
      }
% endfor
% else:
      ONCE for (int tx = 0; tx < TW; ++tx) {
        const V w0 = LOADW(wt + tx * CT);
% for i in range(cols):
        ${f"if ((uint)(ix + {i} * SW + tx * DW) < XW) " if edge else ""}a${i} = LOADV(xt + (${i}L * SW + tx * DW) * G) * w0 + a${i};
% endfor
      }
% endif
    }
  }
  const V b = ${"LOADV(bias + c)" if bias else "0"};
% for i in range(cols):
  put_from(OUT_ARGS, p + ${i}L * UW * G, a${i}, b, first);
% endfor
}
% endfor

// Computes a tile of every row of the band, for all channels of the job.
#define DOWN(tile) \
  ONCE for (int row = y0; row < y1; ++row) \
    ONCE for (int c = c0; c < c1; c += LANES) { \
      const int at = min(c, G - LANES); \
      tile(xs + at, packed + at, OUT_ARGS, (p0 + (long)row * UH * ZW + column * UW) * G + at, at, c - at, \
           iz, row * SH - ph, column * SW - pw); \
    }

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, OUT_PARAMS, int pd, int ph,
               int pw, int ud, int uh, int uw) {
  const int item = get_global_id(0);
  const int work = IMAGES * YD * BANDS * CHUNKS, last = (int)((long)(item + 1) * work / ITEMS);
  packed += packed_off;
  ONCE for (int job = (int)((long)item * work / ITEMS); job < last; ++job) {
    const int c0 = job % CHUNKS * CB, c1 = min(c0 + CB, G);
    const int band = job / CHUNKS, y0 = band % BANDS * R, z = band / BANDS % YD, image = band / (BANDS * YD);
    const int y1 = min(y0 + R, YH), iz = z * SD - pd;
    global const REAL *xs = x + (long)image * XD * XH * XW * G;
    const long p0 = (((long)image * ZD + z * UD + ud) * ZH + uh) * ZW + uw;
    int column = 0;
    ONCE for (; column + ${widths[0]} <= YW; column += ${widths[0]}) {
      const int begin = column * SW - pw, end = begin + (${widths[0]} - 1) * SW + (TW - 1) * DW;
      if (begin < 0 || end >= XW) {
        DOWN(tile_${widths[0]}_edge)
      } else {
        DOWN(tile_${widths[0]})
      }
    }
% if len(widths) > 1:
    DOWN(tile_${widths[1]}_edge)
% endif
  }
}
