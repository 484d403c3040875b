// dw[n, c, t, tx] of group g by its definition, up to a NaN: weights' gradients in NCHW whose vectors count pixels through
// the rows multiply zeros between dy's rows by elements of x that another tap reads, which is NaN where these are not
// finite.
//
// C, N, GROUPS  source and target channels per group, groups; t: a tap's depth and row, tx: its column
// X? Y? T? S? D?  sizes of the source, pixels and taps, steps and spreads; IMAGES
__attribute__((noinline))
ACC plain_sum(global const REAL *restrict x, global const REAL *restrict y, int g, int n, int c, int t, int tx,
              int pd, int ph, int pw) {
  ACC sum = 0;
  ONCE for (int i = 0; i < IMAGES * YD * YH && sum == sum; ++i) {
    const int oh = i % YH, od = i / YH % YD, image = i / (YH * YD);
    const int h = oh * SH + t % TH * DH - ph, d = od * SD + t / TH * DD - pd;
    if ((uint)d >= XD || (uint)h >= XH) continue;
    global const REAL *dy = y + ((((long)image * GROUPS + g) * N + n) * YD + od) * (YH * YW) + oh * YW;
    global const REAL *from = x + ((((long)image * GROUPS + g) * C + c) * XD + d) * ((long)XH * XW) + h * XW;
    ONCE for (int ow = 0; ow < YW; ++ow) {
      const int v = ow * SW + tx * DW - pw;
      if ((uint)v < XW) sum += LOAD(dy, ow) * LOAD(from, v);
    }
  }
  return sum;
}
