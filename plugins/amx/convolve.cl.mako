## y[n, place] = epilogue(sum over (c, tap) of w[n, c, tap] x[c, place * step + origin + tap * spread]) by matrix registers
//
// A work item takes bands of rows. It splits the source of a band into its slot (band.cl) and computes tiles of 32
// positions by 32 target channels there, one after the other, for some panels of 32 channels. What stands at a position
// that is no place is dropped.
//
// N target channels a group in PANELS panels of 32, PER of them a job; STEPS of 32 summed indices
// ROWS rows of positions of a band, BANDS bands; JOBS jobs for ITEMS work items
// Channels last, panels whose weights the cache holds are the inner loop: what neighbours in memory is written in turn.
<%
loops = {
    "p": "ONCE for (int p = 0; p < rows * QW; p += 32)",
    "panel": "ONCE for (int panel = part * PER; panel < panels; ++panel)",
}
outer, inner = ("p", "panel") if places_first else ("panel", "p")
%>\
#include <convdispatch/first_lanes.cl>
inline void put_some(OUT_PARAMS, long at, V v, int n, ACC b) {
  if (n >= 16) put_vector(OUT_ARGS, at, v, b);
  else put_first(OUT_ARGS, at, v, n, b);
}

void put_tile(global const float *sums, OUT_PARAMS, long row, long stop, int q, int n0, int g) {
  const int channels = min(32, N - n0);
#if NHWC
  const V low = ${"first_of(bias + g * N + n0, channels)" if bias else "0"};
  const V high = ${"first_of(bias + g * N + n0 + 16, channels - 16)" if bias else "0"};
#endif
  ONCE for (int i = 0; i < 32 && row < stop;) {
    const int run = min(32 - i, YW - q);
    const long at = target_row(row);
    if (run > 0 && at >= 0) {
#if NHWC
      ONCE for (int j = 0; j < run; ++j) {
        const long to = at + (long)(q + j) * OW_ * (N * GROUPS) + g * N + n0;
        global const float *s = sums + (i + j) * 32;
        put_some(OUT_ARGS, to, LOADW(s) + low, channels, 0);
        if (channels > 16) put_some(OUT_ARGS, to + 16, LOADW(s + 16) + high, channels - 16, 0);
      }
#else
      ONCE for (int n = 0; n < channels; ++n) {
        const ACC b = ${"LOAD(bias, g * N + n0 + n)" if bias else "0"};
        const long to = at + (long)(g * N + n0 + n) * TD * TH * TW + (long)q * OW_;
        global const float *s = sums + n * 32 + i;
#if OW_ == 1
        ONCE for (int j = 0; j < run; j += 16) put_some(OUT_ARGS, to + j, LOADW(s + j), min(16, run - j), b);
#else
        ONCE for (int j = 0; j < run; ++j) put_one(OUT_ARGS, to + (long)j * OW_, s[j], b);
#endif
      }
#endif
    }
    i += min(32 - i, QW - q);
    q += min(32, QW - q);
    if (q >= QW) q = 0, ++row;
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const uchar *restrict w, long w_at, global uchar *workspace, OUT_PARAMS) {
  const int item = get_global_id(0);
  global uchar *slot = workspace + item * SLOT;
  global float *sums = (global float *)(slot + SUMS_AT);
  const int last = (int)((item + 1) * JOBS / ITEMS);
  int band_there = -1;
  w += w_at;
% if taps:
  TILES_BEGIN();
% endif
  ONCE for (int job = (int)(item * JOBS / ITEMS); job < last; ++job) {
    const int part = job % PARTS_OF_N, band = job / PARTS_OF_N, g = band / BANDS;
    const long first = (long)(band % BANDS) * ROWS;
    const int rows = min((long)ROWS, ALL_ROWS - first);
% if taps:
    if (band != band_there) fill(slot, x, first, g);
% endif
    band_there = band;
    const int panels = min(PANELS, part * PER + PER);
    ${loops[outer]}
      ${loops[inner]} {
        global const uchar *at = slot + (long)p * UNIT, *weights = w + ((long)g * PANELS + panel) * (STEPS * STEP_W);
% if not taps:
        ONCE for (int i = 0; i < 1024; i += 16) STOREW(sums + i, (V)(0));
% else:
% if narrow:
        if (N - 32 * panel <= 16) narrow_tile(${"at, weights" if nhwc else "weights, at"}, OFFSETS, STEPS, sums);
        else
% endif
        tile(${"at, weights" if nhwc else "weights, at"}, OFFSETS, STEPS, sums);
% endif
        put_tile(sums, OUT_ARGS, first + p / QW, first + rows, p % QW, 32 * panel, g);
      }
  }
% if taps:
  TILES_END();
% endif
}
