// y[n,oc,o] = sum over ic, k of w[oc,ic,k] x[n, ic, o s - p + k d], and the same sum solved for x (BWD_DATA) or w
// (BWD_WEIGHTS). One work item computes one element of the written tensor. Macros: ConvProblem.macros().

#if NHWC
#define X(n, c, d, h, w) (((((long)(n) * ID + (d)) * IH + (h)) * IW + (w)) * IC + (c))
#define W(o, c, d, h, w) (((((long)(o) * KD + (d)) * KH + (h)) * KW + (w)) * ICG + (c))
#define Y(n, c, d, h, w) (((((long)(n) * OD + (d)) * OH + (h)) * OW + (w)) * OC + (c))
#else
#define X(n, c, d, h, w) (((((long)(n) * IC + (c)) * ID + (d)) * IH + (h)) * IW + (w))
#define W(o, c, d, h, w) (((((long)(o) * ICG + (c)) * KD + (d)) * KH + (h)) * KW + (w))
#define Y(n, c, d, h, w) (((((long)(n) * OC + (c)) * OD + (d)) * OH + (h)) * OW + (w))
#endif

// Splits a flat index of a tensor [outer, channels, d, h, w] in the problem's layout.
#define SPLIT(id, C, SD_, SH_, SW_)                                                                  \
  long rest = (id);                                                                                  \
  int c, d, h, w_;                                                                                   \
  if (NHWC) { c = rest % (C); rest /= (C); }                                                         \
  w_ = rest % (SW_); rest /= (SW_);                                                                  \
  h = rest % (SH_); rest /= (SH_);                                                                   \
  d = rest % (SD_); rest /= (SD_);                                                                   \
  if (!NHWC) { c = rest % (C); rest /= (C); }                                                        \
  const int outer = rest;

// Literal bounds tempt a compiler to unroll all the loops, which takes it minutes for a 7x7.
#define ROLLED __attribute__((opencl_unroll_hint(1)))
#define INSIDE(i, size) ((i) >= 0 && (i) < (size))

#ifdef FWD
kernel void direct(global const REAL *x, global const REAL *w, global REAL *y) {
  SPLIT(get_global_id(0), OC, OD, OH, OW)
  const int first = c / OCG * ICG;
  ACC sum = 0;
  ROLLED for (int i = 0; i < ICG; ++i)
    ROLLED for (int a = 0; a < KD; ++a)
      ROLLED for (int b = 0; b < KH; ++b)
        ROLLED for (int e = 0; e < KW; ++e) {
          const int zd = d * SD - PD + a * DD, zh = h * SH - PH + b * DH, zw = w_ * SW - PW + e * DW;
          if (INSIDE(zd, ID) && INSIDE(zh, IH) && INSIDE(zw, IW))
            sum += LOAD(w, W(c, i, a, b, e)) * LOAD(x, X(outer, first + i, zd, zh, zw));
        }
  STORE(y, get_global_id(0), sum);
}
#endif

#ifdef BWD_DATA
kernel void direct(global REAL *x, global const REAL *w, global const REAL *y) {
  SPLIT(get_global_id(0), IC, ID, IH, IW)
  const int first = c / ICG * OCG;
  ACC sum = 0;
  ROLLED for (int o = 0; o < OCG; ++o)
    ROLLED for (int a = 0; a < KD; ++a)
      ROLLED for (int b = 0; b < KH; ++b)
        ROLLED for (int e = 0; e < KW; ++e) {
          const int zd = d + PD - a * DD, zh = h + PH - b * DH, zw = w_ + PW - e * DW;
          if (zd % SD == 0 && zh % SH == 0 && zw % SW == 0 && INSIDE(zd, OD * SD) && INSIDE(zh, OH * SH) &&
              INSIDE(zw, OW * SW))
            sum += LOAD(w, W(first + o, c % ICG, a, b, e)) * LOAD(y, Y(outer, first + o, zd / SD, zh / SH, zw / SW));
        }
  STORE(x, get_global_id(0), sum);
}
#endif

#ifdef BWD_WEIGHTS
kernel void direct(global const REAL *x, global REAL *w, global const REAL *y) {
  SPLIT(get_global_id(0), ICG, KD, KH, KW)
  const int channel = outer / OCG * ICG + c;
  ACC sum = 0;
  ROLLED for (int n = 0; n < MB; ++n)
    ROLLED for (int a = 0; a < OD; ++a)
      ROLLED for (int b = 0; b < OH; ++b)
        ROLLED for (int e = 0; e < OW; ++e) {
          const int zd = a * SD - PD + d * DD, zh = b * SH - PH + h * DH, zw = e * SW - PW + w_ * DW;
          if (INSIDE(zd, ID) && INSIDE(zh, IH) && INSIDE(zw, IW))
            sum += LOAD(x, X(n, channel, zd, zh, zw)) * LOAD(y, Y(n, outer, a, b, e));
        }
  STORE(w, get_global_id(0), sum);
}
#endif
