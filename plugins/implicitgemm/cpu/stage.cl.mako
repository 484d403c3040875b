## slot[c, row, column] = source[image, g, c, y0 * SH + row - ph, column - pw], 0 outside: the rows that a band reads.
//
// LANES, V  elements of a vector of sums, its type
// R         rows of a band; ROWS source rows of WIDTH columns belong to it
// CB, NCB   source channels of a block, blocks
// INTER     0: slot [block][c][tz][row][WP] from NCHW; 1: [block][tz][row][column][CP] from NHWC
// XD XH XW, YW  source, width of the pixels; TD TH TW taps; S? step; D? spread; C, G channels per group, groups
#include <convdispatch/runs.cl>
#define ROWS ((R - 1) * SH + (TH - 1) * DH + 1)
#define WIDTH ((YW - 1) * SW + (TW - 1) * DW + 1)
#define BANDS ((YH + R - 1) / R)

// Elements begin to end - 1 of a slot's row are a run of the source, the others 0; unit elements stand for one column.
inline void stage_run(global ACC *restrict to, global const REAL *restrict from, int begin, int end, int size) {
  zero_run(to, begin);
  copy_run(to + begin, from, end - begin);
  zero_run(to + end, size - end);
}

inline void stage(global ACC *restrict slot, global const REAL *restrict x, int image, int g, int z, int y0,
                  int pd, int ph, int pw) {
  const int begin = clamp(pw, 0, WIDTH), end = clamp(XW + pw, begin, WIDTH);
  const int skip = begin - pw;  // the first column of the source
% if inter:
  ONCE for (int block = 0; block < NCB; ++block) {
    const int count = min(CB, C - block * CB);
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int row = 0; row < ROWS; ++row, slot += WIDTH * CP) {
        const int iz = z * SD + tz * DD - pd, iy = y0 * SH + row - ph;
        const int inside = (uint)iz < XD && (uint)iy < XH && begin < end;
        global const REAL *from = x + ((((long)image * XD + iz) * XH + iy) * XW + skip) * (C * G) + g * C + block * CB;
% if cp == c and groups == 1:
        stage_run(slot, from, inside ? begin * C : WIDTH * C, inside ? end * C : WIDTH * C, WIDTH * C);
% else:
        ONCE for (int i = 0; i < WIDTH; ++i) {
          const int here = inside && i >= begin && i < end;
          stage_run(slot + i * CP, from + (long)(i - begin) * (C * G), 0, here ? count : 0, count);
        }
% endif
      }
  }
% else:
  ONCE for (int c = 0; c < C; ++c)
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int row = 0; row < ROWS; ++row, slot += WP) {
        const int iz = z * SD + tz * DD - pd, iy = y0 * SH + row - ph;
        const int inside = (uint)iz < XD && (uint)iy < XH;
        global const REAL *from = x + ((((long)image * G + g) * C + c) * XD + iz) * ((long)XH * XW) + iy * XW + skip;
        stage_run(slot, from, inside ? begin : WIDTH, inside ? end : WIDTH, WIDTH);
      }
% endif
}
