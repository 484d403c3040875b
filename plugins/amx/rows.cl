// Rows of positions: where they lie in the tensors, and sixteen of their elements.
//
// X? source sizes; S? step; QD QH QW pitches; IMAGES images; G channels in all
// Y? places; T? the target's sizes; F? O?_ its first place and the step from place to place; N GROUPS its channels

// Where a row of positions reads at u = 0, in elements of x without the channel; -1 where it lies outside.
inline long source_row(long row, int fd, int fh) {
  const int image = row / (QD * QH), rest = row % (QD * QH), d = rest / QH * SD + fd, h = rest % QH * SH + fh;
  if (image >= IMAGES || d < 0 || d >= XD || h < 0 || h >= XH) return -1;
#if NHWC
  return (((long)image * XD + d) * XH + h) * XW * G;
#else
  return ((long)image * G * XD + d) * XH * XW + (long)h * XW;
#endif
}
// Where place 0 of a row of positions is written, in elements of the target without the channel; -1 without places.
inline long target_row(long row) {
  const int image = row / (QD * QH), rest = row % (QD * QH), d = rest / QH, h = rest % QH;
  if (image >= IMAGES || d >= YD || h >= YH) return -1;
#if NHWC
  return ((((long)image * TD + d * OD_ + FD) * TH + h * OH_ + FH) * TW + FW) * (N * GROUPS);
#else
  return (((long)image * (N * GROUPS) * TD + d * OD_ + FD) * TH + h * OH_ + FH) * TW + FW;
#endif
}
// Every step-th element, n of them or more; ``left``: elements of the tensor from x on.
inline float16 sixteen(global const REAL *x, long left, int n, const int step) {
  if (step == 1 && left >= 16) return LOADV(x);
  if (step == 2 && left >= 32) {
    const float16 a = LOADV(x), b = LOADV(x + 16);
    return (float16)(a.even, b.even);
  }
  union { float16 v; float s[16]; } u;
  u.v = 0;
  ONCE for (int i = 0; i < n; ++i) u.s[i] = LOAD(x, (long)i * step);
  return u.v;
}
// Channels last: positions begin to end read ``step`` elements apart, the others of n are zeros; blocks of 32 channels,
// so that what neighbours in memory is read in turn. to[block: AREA bytes][position][plane][32 channels]
void fill_positions(global uchar *to, long area, global const REAL *from, int begin, int end, int n, long step,
                    int channels) {
  ONCE for (int q = 0; q < n; ++q, to += 64 * PLANES) {
    const bool there = q >= begin && q < end;
    ONCE for (int c = 0; c < channels; c += 32)
      ONCE for (int side = 0; side < 2; ++side) {
        uint16 p[3] = {0, 0, 0};
        const int left = channels - c - 16 * side;
        if (there && left > 0) split(first_of(from + q * step + c + 16 * side, left), p);
        for (int plane = 0; plane < PLANES; ++plane)
          *(global upper16 *)(to + c / 32 * area + 64 * plane + 32 * side) = convert_ushort16(p[plane] >> 16);
      }
  }
}
