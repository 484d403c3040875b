// y[image, g M + m, o] = epilogue(sum over taps t of w[g M + m, t] x[image, g, o S + t D - P]): one input channel a
// group, one work item per element, neighbours in memory side by side.
//
// M  output channels per group
#include <convdispatch/output.cl>
kernel void depthwise(global const REAL *restrict x, global const REAL *restrict w, OUT_PARAMS) {
  const long at = get_global_id(0);
  if (at >= (long)IMAGES * G * M * YD * YH * YW) return;
#if NHWC
  const int channel = at % (G * M);
  const long place = at / (G * M);
  const long image = place / (YD * YH * YW);
#else
  const long place = at;
  const int channel = at / (YD * YH * YW) % (G * M);
  const long image = at / ((long)(YD * YH * YW) * (G * M));
#endif
  const int g = channel / M;
  const int z = place / (YH * YW) % YD * SD - PD, y_ = place / YW % YH * SH - PH, u = place % YW * SW - PW;
  ACC sum = 0;
  for (int tz = 0; tz < TD; ++tz)
    for (int ty = 0; ty < TH; ++ty)
      for (int tx = 0; tx < TW; ++tx) {
        const int iz = z + tz * DD, iy = y_ + ty * DH, ix = u + tx * DW;
        if ((uint)iz >= XD || (uint)iy >= XH || (uint)ix >= XW) continue;
#if NHWC
        const ACC v = LOAD(x, (((image * XD + iz) * XH + iy) * XW + ix) * C + g);
#else
        const ACC v = LOAD(x, ((((long)image * C + g) * XD + iz) * XH + iy) * XW + ix);
#endif
        sum += v * LOAD(w, (long)channel * TAPS + (tz * TH + ty) * TW + tx);
      }
  put(OUT_ARGS, sum, at, channel);
}
