## slot = the source rows of a band of one channel c0 in NCHW, zeros around them: kernels compute from there without a test.
//
// [row % SH][column % SW][tz][row / SH][WP]: neighbouring pixels of a row are neighbours here whatever the step.
//
// LANES, V  elements of a vector of sums, its type
// R         rows of a band; ROWS source rows of WIDTH columns belong to it
// WP, PROWS, PART  columns, rows and elements of one part of a slot
// X? source, YW YH pixels, T? taps, S? step, D? spread
#include <convdispatch/runs.cl>
#define ROWS ((R - 1) * SH + (TH - 1) * DH + 1)
#define WIDTH ((YW - 1) * SW + (TW - 1) * DW + 1)
#define BANDS ((YH + R - 1) / R)
inline void stage(global ACC *restrict slot, global const REAL *restrict x, int image, int c0, int z,
                  int y0, int pd, int ph, int pw) {
  const int begin = clamp(pw, 0, WIDTH), end = clamp(XW + pw, begin, WIDTH);
  ONCE for (int tz = 0; tz < TD; ++tz)
    ONCE for (int row = 0; row < ROWS; ++row) {
      const int iz = z * SD + tz * DD - pd, iy = y0 * SH + row - ph;
      const int inside = (uint)iz < XD && (uint)iy < XH;
      const int first = inside ? begin : WIDTH, stop = inside ? end : WIDTH;
      global const REAL *from = x + (((long)image * G + c0) * XD + iz) * ((long)XH * XW) + iy * XW + first - pw;
      global ACC *to = slot + row % SH * (SW * PART) + (tz * PROWS + row / SH) * WP;
% if step_w == 1:
      zero_run(to, first);
      copy_run(to + first, from, stop - first);
      zero_run(to + stop, WIDTH - stop);
% elif step_w == 2:
      // Elements 0, 2, ... of the row go to the part of ``first``, elements 1, 3, ... to the other one.
      zero_run(to, (first + 1) / 2);
      zero_run(to + PART, first / 2);
      global ACC *even = to + first % 2 * PART + first / 2, *odd = to + (first + 1) % 2 * PART + (first + 1) / 2;
      const int pairs = (stop - first) / 2;
      int i = 0;
      for (; i + LANES <= pairs; i += LANES, even += LANES, odd += LANES) {
        const V a = LOADV(from + 2 * i), b = LOADV(from + 2 * i + LANES);
        STOREW(even, (V)(a.even, b.even));
        STOREW(odd, (V)(a.odd, b.odd));
      }
      ONCE for (; i < pairs; ++i) {
        *even++ = LOAD(from, 2 * i);
        *odd++ = LOAD(from, 2 * i + 1);
      }
      if ((stop - first) % 2) *even++ = LOAD(from, 2 * i);
      zero_run(to + (stop + 1) / 2, WP - (stop + 1) / 2);
      zero_run(to + PART + stop / 2, WP - stop / 2);
% else:
% if step_w == 4:
      // Whole vectors of all four parts: elements 0, 4, ... of the row, 1, 5, ... and so on.
      const int low = (first + 3) / 4;
      int high = low;
      ONCE for (; 4 * (high + LANES) <= stop; high += LANES) {
        global const REAL *four = from + 4 * high - first;
        const V a = LOADV(four), b = LOADV(four + LANES), c = LOADV(four + 2 * LANES), d = LOADV(four + 3 * LANES);
        const V even0 = (V)(a.even, b.even), even1 = (V)(c.even, d.even), odd0 = (V)(a.odd, b.odd), odd1 = (V)(c.odd, d.odd);
        STOREW(to + high, (V)(even0.even, even1.even));
        STOREW(to + PART + high, (V)(odd0.even, odd1.even));
        STOREW(to + 2 * PART + high, (V)(even0.odd, even1.odd));
        STOREW(to + 3 * PART + high, (V)(odd0.odd, odd1.odd));
      }
% endif
      ONCE for (int s = 0; s < SW; ++s, to += PART) {
        const int i0 = first > s ? (first - s + SW - 1) / SW : 0, i1 = max(i0, stop > s ? (stop - s + SW - 1) / SW : 0);
        zero_run(to, i0);
% if step_w == 4:
        if (i0 < low && i0 < i1) to[i0] = LOAD(from, i0 * SW + s - first);
        ONCE for (int i = max(i0, high); i < i1; ++i) to[i] = LOAD(from, i * SW + s - first);
% else:
        for (int i = i0; i < i1; ++i) to[i] = LOAD(from, i * SW + s - first);
% endif
        zero_run(to + i1, WP - i1);
      }
% endif
    }
}
