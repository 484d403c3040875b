// L[(c, tz, ty, tx), i] = x[image, c, oz SD + tz DD - PD, oy SH + ty DH - PH, ox SW + tx DW - PW], 0 outside x, for
// pixel i = (image, oz, oy, ox): NCHW on a CPU, where neighbours i are neighbours in memory.
//
// W      pixels of a block, which one work item fills for CB channels
// LD     0: blocks are panels of a packed operand, [g][block][k][W]; else L is [g][k][LD]
// RUNS   most rows of the window's pixels that a block touches
// start  first pixel of the chunk; count: its pixels; blocks: ceil(count / W)
//
// OUTSIDE  1: some rows of the window are outside x; CLIPPED: some pixels of a row are
#if LD
#define PLACE(k) (((long)g * K + (k)) * LD + i0)
#else
#define PLACE(k) ((((long)g * blocks + block) * K + (k)) * W)
#endif

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void lower(global const SRC *restrict x, global DST *restrict lowered, long start, int count, int blocks) {
  const int block = get_global_id(0), c0 = get_global_id(1) * CB, c1 = min(c0 + CB, CG), g = get_global_id(2);
  const int i0 = block * W, n = min(W, count - i0);
  DST rows[TW * W] __attribute__((aligned(64)));
  long from[RUNS];
  int z[RUNS], y[RUNS], u[RUNS], length[RUNS], runs = 0;
  for (int done = 0; done < n; ++runs) {
    const long i = start + i0 + done;
    const int ox = i % YW;
    u[runs] = ox * SW - PW;
    y[runs] = (int)(i / YW % YH) * SH - PH;
    z[runs] = (int)(i / ((long)YW * YH) % YD) * SD - PD;
    from[runs] = i / ((long)YW * YH * YD) * ((long)C * XD * XH * XW);
    length[runs] = min(YW - ox, n - done);
    done += length[runs];
  }
  // What a panel holds beyond the last pixel reaches no result, but a number that is all but zero slows a multiply-add
  // a hundred times.
  if (n < W) for (int j = 0; j < TW * W; ++j) rows[j] = 0;
  for (int c = c0; c < c1; ++c) {
    global const SRC *plane = x + (long)(g * CG + c) * (XD * XH * XW);
    for (int tz = 0; tz < TD; ++tz)
      for (int ty = 0; ty < TH; ++ty) {
        private DST *to = rows;
        for (int r = 0; r < runs; ++r) {
          const int iz = z[r] + tz * DD, iy = y[r] + ty * DH, len = length[r];
          if (OUTSIDE && ((uint)iz >= XD || (uint)iy >= XH)) {
            for (int tx = 0; tx < TW; ++tx) zero_run(to + tx * W, len);
          } else {
            global const SRC *row = plane + from[r] + ((long)iz * XH + iy) * XW + u[r];
            for (int tx = 0; tx < TW; ++tx) {
              private DST *target = to + tx * W;
              int low = 0, high = len;
              if (CLIPPED) {  // pixels low to high - 1 read inside the row
                const int ix = u[r] + tx * DW;
                low = min(len, ix < 0 ? (-ix + SW - 1) / SW : 0);
                high = max(low, min(len, (XW - ix + SW - 1) / SW));
                if (low > 0) zero_run(target, low);
                if (high < len) zero_run(target + high, len - high);
              }
#if SW == 1
              copy_run(target + low, row + (tx * DW + low), high - low);
#elif SW == 2
              copy_second(target + low, row + (tx * DW + low * 2), high - low);
#else
              for (int j = low; j < high; ++j) target[j] = GET(row, tx * DW + j * SW);
#endif
            }
          }
          to += len;
        }
        // Whole cache lines are written together, because partial writes of lines that other cores hold are slow.
        for (int tx = 0; tx < TW; ++tx) {
          global DST *line = lowered + PLACE((c * TD + tz) * TH * TW + ty * TW + tx);
#if LD
          const int lanes = min(W, LD - i0);
#else
          const int lanes = W;
#endif
          int j = 0;
          for (; j + 16 <= lanes; j += 16) *(global run16 *)(line + j) = *(const run16 *)(rows + tx * W + j);
          for (; j < lanes; ++j) line[j] = rows[tx * W + j];
        }
      }
  }
}
