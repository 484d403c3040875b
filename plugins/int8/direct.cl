// y[image, n, o] = epilogue(sum over c, t of (x[image, c, o S + t D - P] - x_zero) w[n, c, t]): one work item per element.
//
// the problem's letters; NHWC 1: NHWC in x, w and y; REAL and WEIGHT: types of x and w
#include <convdispatch/quantized.cl>
kernel void conv(global const REAL *restrict x, global const WEIGHT *restrict w, global OUT *restrict y, TABLE_PARAMS) {
  const int at = get_global_id(0);
  if (at >= MB * OC * OD * OH * OW) return;
#if NHWC
  const int n = at % OC, ow = at / OC % OW, oh = at / (OC * OW) % OH, od = at / (OC * OW * OH) % OD;
  const int cx = 1, tx = IC, cw = 1, tw = ICG;
#else
  const int ow = at % OW, oh = at / OW % OH, od = at / (OW * OH) % OD, n = at / (OW * OH * OD) % OC;
  const int cx = ID * IH * IW, tx = 1, cw = KD * KH * KW, tw = 1;
#endif
  const int image = at / (OC * OD * OH * OW), zero = X_ZERO(table);
  global const REAL *from = x + (long)image * IC * ID * IH * IW + (long)(n / OCG * ICG) * cx;
  global const WEIGHT *weights = w + (long)n * ICG * KD * KH * KW;
  ACC sum = 0;
  for (int kd = 0; kd < KD; ++kd) {
    const int d = od * SD + kd * DD - PD;
    if (d < 0 || d >= ID) continue;
    for (int kh = 0; kh < KH; ++kh) {
      const int h = oh * SH + kh * DH - PH;
      if (h < 0 || h >= IH) continue;
      for (int kw = 0; kw < KW; ++kw) {
        const int v = ow * SW + kw * DW - PW;
        if (v < 0 || v >= IW) continue;
        global const REAL *p = from + ((long)(d * IH + h) * IW + v) * tx;
        global const WEIGHT *q = weights + ((kd * KH + kh) * KW + kw) * tw;
        for (int c = 0; c < ICG; ++c) sum += (LOAD(p, (long)c * cx) - zero) * LOAD(q, c * cw);
      }
    }
  }
  put_sum(y, TABLE_ARGS, sum, at, n);
}
