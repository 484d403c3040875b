// Weights as tiles: [group][panel of 32 target channels][block of 32 source channels][tap][plane][half][1 KB].
//
// NHWC  a tile's rows are pairs of source channels, of 16 target channels each
// else  a tile's rows are target channels, of 32 source channels each
//
// WN WC  elements of w from target channel to target channel and from source channel to source channel, W_GROUP from
//        group to group, WT from tap to tap; TAP_AT the phase's taps
#define AT_(i) LOAD(p, (i) * (long)WC)
inline float16 channels_of(global const REAL *p, int n) {
#if WC == 1
  return first_of(p, n);
#else
  if (n >= 16)
    return (float16)(AT_(0), AT_(1), AT_(2), AT_(3), AT_(4), AT_(5), AT_(6), AT_(7),
                     AT_(8), AT_(9), AT_(10), AT_(11), AT_(12), AT_(13), AT_(14), AT_(15));
  union { float16 v; float s[16]; } u;
  u.v = 0;
  ONCE for (int c = 0; c < n; ++c) u.s[c] = AT_(c);
  return u.v;
#endif
}
// A tile row of a target channel: 32 source channels, n of them there.
inline void row_of(uint16 *p, global const REAL *w, int n) {
  const float16 a = channels_of(w, n), b = channels_of(w + 16 * (long)WC, n - 16);
  uint16 odd[3];
  split((float16)(a.even, b.even), p);
  split((float16)(a.odd, b.odd), odd);
  for (int plane = 0; plane < PLANES; ++plane) p[plane] = p[plane] >> 16 | odd[plane];
}
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global uchar *restrict to, long to_at) {
  const int panel = get_global_id(0) % PANELS, g = get_global_id(0) / PANELS, block = get_global_id(1);
  to += to_at + (((long)g * PANELS + panel) * STEPS + block * TAPS) * STEP_W;
  w += (long)g * W_GROUP + (long)(32 * panel) * WN + (long)(32 * block) * WC;
  const int channels = min(32, C - 32 * block), rows = min(32, N - 32 * panel);
  ONCE for (int side = 0; side < 2; ++side)
    ONCE for (int tap = 0; tap < TAPS; ++tap) {
      global uchar *tile = to + (long)tap * STEP_W + 1024 * side;
      global const REAL *from = w + (long)(16 * side) * WN + (long)TAP_AT[tap] * WT;
#if NHWC && WN == 1
      ONCE for (int pair = 0; pair < 16; ++pair) {
        uint16 even[3], odd[3];
        const int c = 2 * pair, n = rows - 16 * side;
        split(first_of(from + c * (long)WC, c < channels ? n : 0), even);
        split(first_of(from + (c + 1) * (long)WC, c + 1 < channels ? n : 0), odd);
        for (int plane = 0; plane < PLANES; ++plane)
          *(global pairs16 *)(tile + plane * 2048 + pair * 64) = even[plane] >> 16 | odd[plane];
      }
#else
      uint16 v[PLANES][16];
      ONCE for (int n = 0; n < 16; ++n) {
        uint16 p[3];
        row_of(p, from + (long)n * WN, 16 * side + n < rows ? channels : 0);
        for (int plane = 0; plane < PLANES; ++plane) v[plane][n] = p[plane];
      }
      for (int plane = 0; plane < PLANES; ++plane) {
#if NHWC
        turn(v[plane]);
#endif
        for (int i = 0; i < 16; ++i) *(global pairs16 *)(tile + plane * 2048 + i * 64) = v[plane][i];
      }
#endif
    }
}
