// Rows of positions: their offsets in the tensors, and sixteen of their elements.
//
// X? source sizes; S? step; QD QH QW pitches; IMAGES images; G channels in all
// T? the target's sizes; O?_ the step from pixel to pixel; N GROUPS its channels
// SIZES_IN SIZES  what brings these to a function, where they are a kernel's argument

// The image, depth and height of a row of positions; the next one's, for divisions take longer than a row's vectors.
inline int3 place_of(SIZES_IN int row) {
  if (!row) return 0;
  const int rest = row % (QD * QH);
  return (int3)(row / (QD * QH), rest / QH, rest % QH);
}
inline int3 next_place(SIZES_IN int3 place) {
  if (++place.s2 == QH) place.s2 = 0, ++place.s1;
  if (place.s1 == QD) place.s1 = 0, ++place.s0;
  return place;
}
// Where a row reads at u = 0, in elements of x without the channel; -1 where it is outside.
inline long source_at(SIZES_IN int3 place, int fd, int fh) {
  const int d = place.s1 * SD + fd, h = place.s2 * SH + fh;
  if (place.s0 >= IMAGES || d < 0 || d >= XD || h < 0 || h >= XH) return -1;
#if NHWC
  return (((long)place.s0 * XD + d) * XH + h) * XW * G;
#else
  return ((long)place.s0 * G * XD + d) * XH * XW + (long)h * XW;
#endif
}
// Where pixel 0 of a row is written, of pixels up to (depth, height), in elements of the target without the channel and
// the phase's first pixel; -1 without pixels.
inline long target_at(SIZES_IN int3 place, int depth, int height) {
  if (place.s0 >= IMAGES || place.s1 >= depth || place.s2 >= height) return -1;
#if NHWC
  return (((long)place.s0 * TD + place.s1 * OD_) * TH + place.s2 * OH_) * TW * (N * GROUPS);
#else
  return (((long)place.s0 * (N * GROUPS) * TD + place.s1 * OD_) * TH + place.s2 * OH_) * TW;
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
// Writes the planes of sixteen channels of a position.
inline void fill_half(SCALE_IN global uchar *to, float16 v) {
  uint16 p[3];
  split(SCALE v, p);
  for (int plane = 0; plane < PLANES; ++plane) *(global upper16 *)(to + 64 * plane) = convert_ushort16(p[plane] >> 16);
}
// Channels last: positions begin to end read ``step`` elements apart, the others of n are zeros; blocks of 32 channels,
// so that what neighbours in memory is read in turn. to[block: AREA bytes][position][plane][32 channels]
void fill_positions(SCALE_IN global uchar *to, long area, global const REAL *from, int begin, int end, int n,
                    long step, int channels) {
  ONCE for (int q = 0; q < n; ++q, to += 64 * PLANES, from += step) {
    const bool there = q >= begin && q < end;
    global uchar *block = to;
    global const REAL *x = from;
    int left = channels;
    if (there)
      ONCE for (; left >= 32; left -= 32, block += area, x += 32) {
        fill_half(SCALE block, LOADV(x));
        fill_half(SCALE block + 32, LOADV(x + 16));
      }
    ONCE for (; left > 0; left -= 32, block += area)
      ONCE for (int side = 0; side < 32; side += 16)
        if (there && left > side) fill_half(SCALE block + 2 * side, first_of(x + side, left - side));
        else for (int plane = 0; plane < PLANES; ++plane) *(global upper16 *)(block + 2 * side + 64 * plane) = 0;
  }
}
