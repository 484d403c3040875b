## A float32 as two planes of 16-bit numbers, the larger in the lower half.
#define FIRST(a, b) (((a) & 0xffffu) | (b) << 16)
#define SECOND(a, b) ((a) >> 16 | ((b) & 0xffff0000u))
inline uint split(float v) {
  const ushort high = narrow(v);
  const float rest = fabs(v) <= 3.4028235e38f ? v - widen(high) : 0;  // an infinity has no rest
  return high | (uint)narrow(rest) << 16;
}
