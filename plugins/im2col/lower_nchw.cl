// L[(c, tz, ty, tx), i] = x[image, c, oz SD + tz DD - PD, oy SH + ty DH - PH, ox SW + tx DW - PW], 0 outside x, for
// place i = (image, oz, oy, ox): NCHW on a CPU, where neighbours i are neighbours in memory.
//
// W      places of a block, which one work item fills for CB channels
// LD     0: blocks are panels of a packed operand, [g][block][k][W]; else L is [g][k][LD]
// RUNS   most rows of the window's places that a block touches
// start  first place of the chunk; count: its places; blocks: ceil(count / W)
#if LD
#define PLACE(k) (((long)g * K + (k)) * LD + i0)
#else
#define PLACE(k) ((((long)g * blocks + block) * K + (k)) * W)
#endif

kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void lower(global const SRC *restrict x, global DST *restrict lowered, long start, int count, int blocks) {
  const int block = get_global_id(0), c0 = get_global_id(1) * CB, c1 = min(c0 + CB, CG), g = get_global_id(2);
  const int i0 = block * W, n = min(W, count - i0);
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
  for (int c = c0; c < c1; ++c) {
    global const SRC *plane = x + (long)(g * CG + c) * (XD * XH * XW);
    for (int tz = 0; tz < TD; ++tz)
      for (int ty = 0; ty < TH; ++ty)
        for (int tx = 0; tx < TW; ++tx) {
          global DST *to = lowered + PLACE(((c * TD + tz) * TH + ty) * TW + tx);
          for (int r = 0; r < runs; ++r) {
            const int iz = z[r] + tz * DD, iy = y[r] + ty * DH, ix = u[r] + tx * DW, len = length[r];
            if ((uint)iz >= XD || (uint)iy >= XH) {
              zero_run(to, len);
            } else {
              // Places low to high - 1 read inside the row.
              const int low = min(len, ix < 0 ? (-ix + SW - 1) / SW : 0);
              const int high = max(low, min(len, (XW - ix + SW - 1) / SW));
              global const SRC *row = plane + from[r] + ((long)iz * XH + iy) * XW;
              zero_run(to, low);
#if SW == 1
              copy_run(to + low, row + (ix + low), high - low);
#else
              for (int j = low; j < high; ++j) to[j] = GET(row, ix + j * SW);
#endif
              zero_run(to + high, len - high);
            }
            to += len;
          }
        }
  }
}
