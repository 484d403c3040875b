// Any convolution, its geometry in arguments: one program serves every problem of a dtype and epilogue.
//
//   y[n, o, p] = act(sum over (c, k) of x[n, c, p S - P + k D] w[o, c, k] + bias[o] + residual[n, o, p])
//
// GEOMETRY  the arguments' declarations, named by the problem's letters (MB IC OC G ID IH IW OD ...), and the element
//           strides of x (XN XC XD XH XW), y (YN YC YD YH YW) and w (WO WC WD WH WW)
// BIAS RESIDUAL ACCUMULATE ACTIVATION(T, v)  what follows the sum
// A work item is an element of what is written. Sums run tap by tap, or row by row, so that none is long.
#include <convdispatch/epilogue.cl>
#define FINISH(at, channel)                                                        \
  EPILOGUE(ACC, sum, LOAD(bias, channel), LOAD(residual, at), LOAD(out, at))       \
  STORE(out, at, sum);

kernel void fwd(global const REAL *x, global const REAL *w, global REAL *out, global const REAL *bias,
                global const REAL *residual, GEOMETRY) {
  const long i = get_global_id(0), v = i % OW, h = i / OW % OH, d = i / OW / OH % OD, o = i / OW / OH / OD % OC;
  const long n = i / OW / OH / OD / OC, first = o / (OC / G) * (IC / G);
  ACC sum = 0;
  for (long kd = 0; kd < KD; ++kd)
    for (long kh = 0; kh < KH; ++kh)
      for (long kw = 0; kw < KW; ++kw) {
        const long z = d * SD - PD + kd * DD, y = h * SH - PH + kh * DH, u = v * SW - PW + kw * DW;
        if (z < 0 || z >= ID || y < 0 || y >= IH || u < 0 || u >= IW) continue;
        const long from = n * XN + first * XC + z * XD + y * XH + u * XW;
        const long weight = o * WO + kd * WD + kh * WH + kw * WW;
        ACC part = 0;
        for (long c = 0; c < IC / G; ++c) part += LOAD(x, from + c * XC) * LOAD(w, weight + c * WC);
        sum += part;
      }
  const long at = n * YN + o * YC + d * YD + h * YH + v * YW;
  FINISH(at, o)
}

kernel void bwd_data(global const REAL *y, global const REAL *w, global REAL *out, global const REAL *bias,
                     global const REAL *residual, GEOMETRY) {
  const long i = get_global_id(0), v = i % IW, h = i / IW % IH, d = i / IW / IH % ID, c = i / IW / IH / ID % IC;
  const long n = i / IW / IH / ID / IC, first = c / (IC / G) * (OC / G);
  ACC sum = 0;
  for (long kd = 0; kd < KD; ++kd)
    for (long kh = 0; kh < KH; ++kh)
      for (long kw = 0; kw < KW; ++kw) {
        const long z = d + PD - kd * DD, t = h + PH - kh * DH, u = v + PW - kw * DW;
        if (z < 0 || t < 0 || u < 0 || z % SD || t % SH || u % SW) continue;
        if (z / SD >= OD || t / SH >= OH || u / SW >= OW) continue;
        const long from = n * YN + first * YC + z / SD * YD + t / SH * YH + u / SW * YW;
        const long weight = first * WO + c % (IC / G) * WC + kd * WD + kh * WH + kw * WW;
        ACC part = 0;
        for (long o = 0; o < OC / G; ++o) part += LOAD(y, from + o * YC) * LOAD(w, weight + o * WO);
        sum += part;
      }
  const long at = n * XN + c * XC + d * XD + h * XH + v * XW;
  FINISH(at, c)
}

kernel void bwd_weights(global const REAL *x, global const REAL *y, global REAL *out, global const REAL *bias,
                        global const REAL *residual, GEOMETRY) {
  const long i = get_global_id(0), kw = i % KW, kh = i / KW % KH, kd = i / KW / KH % KD;
  const long c = i / KW / KH / KD % (IC / G), o = i / KW / KH / KD / (IC / G), channel = o / (OC / G) * (IC / G) + c;
  ACC sum = 0;
  for (long n = 0; n < MB; ++n)
    for (long d = 0; d < OD; ++d)
      for (long h = 0; h < OH; ++h) {
        const long z = d * SD - PD + kd * DD, t = h * SH - PH + kh * DH;
        if (z < 0 || z >= ID || t < 0 || t >= IH) continue;
        const long from = n * XN + channel * XC + z * XD + t * XH, to = n * YN + o * YC + d * YD + h * YH;
        ACC part = 0;
        for (long v = 0; v < OW; ++v) {
          const long u = v * SW - PW + kw * DW;
          if (u >= 0 && u < IW) part += LOAD(x, from + u * XW) * LOAD(y, to + v * YW);
        }
        sum += part;
      }
  const long at = o * WO + c * WC + kd * WD + kh * WH + kw * WW;
  FINISH(at, o)
}
