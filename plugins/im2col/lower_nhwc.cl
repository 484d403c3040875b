// L[i, (tz, ty, tx, c)] = x[image, oz SD + tz DD - PD, oy SH + ty DH - PH, ox SW + tx DW - PW, c], 0 outside x, for
// pixel i = (image, oz, oy, ox): NHWC on a CPU, where neighbours k are neighbours in memory.
//
// W      pixels that one work item fills for one group
// LD     above 0: L is [i][g][LD], copied in runs of channels; 0: panels of a packed operand, [g][block][k][W]
// DENSE  1: the taps of a row of the window are one run of x (one group, neighbouring taps)
// start  first pixel of the chunk; count: its pixels; blocks: ceil(count / W)
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void lower(global const SRC *restrict x, global DST *restrict lowered, long start, int count, int blocks) {
  const int block = get_global_id(0), g = get_global_id(1), i0 = block * W, n = min(W, count - i0);
#if !LD
  // What a panel holds beyond the last pixel reaches no result, but a number that is all but zero slows a multiply-add
  // a hundred times.
  global DST *panel = lowered + ((long)g * blocks + block) * ((long)K * W);
  if (n < W)
    for (int k = 0; k < K; ++k)
      for (int lane = n; lane < W; ++lane) panel[(long)k * W + lane] = 0;
#endif
  for (int lane = 0; lane < n; ++lane) {
    const long i = start + i0 + lane;
    const int z = (int)(i / ((long)YW * YH) % YD) * SD - PD;
    const int y = (int)(i / YW % YH) * SH - PH, u = (int)(i % YW) * SW - PW;
    global const SRC *image = x + i / ((long)YW * YH * YD) * ((long)XD * XH * XW * C) + g * CG;
#if LD
    global DST *to = lowered + ((long)(i0 + lane) * G + g) * LD;
#else
    global DST *to = lowered + ((long)g * blocks + block) * ((long)K * W) + lane;
#endif
    for (int tz = 0; tz < TD; ++tz)
      for (int ty = 0; ty < TH; ++ty) {
        const int iz = z + tz * DD, iy = y + ty * DH;
        const int inside = (uint)iz < XD && (uint)iy < XH;
        global const SRC *row = image + ((long)iz * XH + iy) * XW * C;
#if LD && DENSE
        const int low = inside ? clamp(-u, 0, TW) : TW, high = inside ? clamp(XW - u, low, TW) : TW;
        zero_run(to, low * CG);
        copy_run(to + low * CG, row + (long)(u + low) * C, (high - low) * CG);
        zero_run(to + high * CG, (TW - high) * CG);
        to += TW * CG;
#else
        for (int tx = 0; tx < TW; ++tx) {
          const int ix = u + tx * DW;
          const int valid = inside && (uint)ix < XW;
          global const SRC *from = row + (long)ix * C;
#if LD
          if (valid) copy_run(to, from, CG);
          else zero_run(to, CG);
          to += CG;
#else
          if (valid) for (int c = 0; c < CG; ++c) to[(long)c * W] = GET(from, c);
          else for (int c = 0; c < CG; ++c) to[(long)c * W] = 0;
          to += (long)CG * W;
#endif
        }
#endif
      }
  }
}
