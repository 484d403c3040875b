// L[k, i] = x[image, c, oz SD + tz DD - PD, oy SH + ty DH - PH, ox SW + tx DW - PW], 0 outside x, for pixel
// i = (image, oz, oy, ox) and k = (c, tap) in NCHW, (tap, c) in NHWC: one work item per element, neighbours in memory
// side by side.
//
// NHWC   1: L is [i][g][LD]; 0: L is [g][k][LD]
// start  first pixel of the chunk; count: its pixels
kernel void lower(global const SRC *restrict x, global DST *restrict lowered, long start, int count, int blocks) {
  const long id = get_global_id(0);
#if NHWC
  const int k = id % K, g = id / K % G, here = id / (K * G);
  if (here >= count) return;
  const int c = k % CG, tap = k / CG;
  const long to = ((long)here * G + g) * LD + k;
#else
  const int here = id % count, k = id / count % K, g = id / ((long)count * K);
  if (g >= G) return;
  const int c = k / TAPS, tap = k % TAPS;
  const long to = ((long)g * K + k) * LD + here;
#endif
  const long i = start + here;
  const int iz = (int)(i / ((long)YW * YH) % YD) * SD - PD + tap / (TW * TH) * DD;
  const int iy = (int)(i / YW % YH) * SH - PH + tap / TW % TH * DH;
  const int ix = (int)(i % YW) * SW - PW + tap % TW * DW;
  const long image = i / ((long)YW * YH * YD);
  DST value = 0;
  if ((uint)iz < XD && (uint)iy < XH && (uint)ix < XW) {
#if NHWC
    value = GET(x, (((image * XD + iz) * XH + iy) * XW + ix) * C + g * CG + c);
#else
    value = GET(x, (((image * C + g * CG + c) * XD + iz) * XH + iy) * XW + ix);
#endif
  }
  lowered[to] = value;
}
