## target[image, g, pixel] = epilogue(sum over tap of w[g, tap] source[image, g, pixel * step + tap * spread - pad])
//
// NCHW: a work item takes bands of rows of some channels. It copies the source rows of a band into its slot, zeros round
// them, and computes from there without a test. Slot [row % SH][column % SW][tz][row / SH][WP] for one channel, so that
// neighbouring pixels of a row are neighbours whatever the step; a vector is LANES pixels counted through the rows, row
// ends' rests are computed and dropped.
//
// LANES, V   elements of a vector of sums, its type
// R          rows of a band
// ITEMS      work items; the bands and channels are divided among them in contiguous runs
// X? Y? Z? T? S? D? U?  source, pixels, target, taps, step, spread, stride in the target; G channels
#include <convdispatch/output_lanes.cl>
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
               OUT_PARAMS, int pd, int ph, int pw, int ud, int uh, int uw) {
  const int item = get_global_id(0);
  const int work = IMAGES * G * YD * BANDS;
  global ACC *slot = workspace + (long)item * SLOT;
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
    const ACC b = ${"LOAD(bias, g)" if bias else "0"};
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
