// Weights as tiles: [group][panel of 32 target channels][block of 32 source channels][tap][plane][half][1 KB].
//
// NHWC  a tile's rows are pairs of source channels, of 16 target channels each
// else  a tile's rows are target channels, of 32 source channels each
//
// WN WC  elements of w from target channel to target channel and from source channel to source channel, W_GROUP from
//        group to group, WT from tap to tap; TAP_AT the phase's taps
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global uchar *restrict to, long to_at) {
  const int panel = get_global_id(0) % PANELS, g = get_global_id(0) / PANELS, block = get_global_id(1);
  to += to_at + (((long)g * PANELS + panel) * STEPS + block * TAPS) * STEP_W;
  w += (long)g * W_GROUP + (long)(32 * panel) * WN + (long)(32 * block) * WC;
  const int channels = min(32, C - 32 * block);
  ONCE for (int n = 0; n < 32; ++n)
    ONCE for (int tap = 0; tap < TAPS; ++tap)
      ONCE for (int side = 0; side < 2; ++side) {
        union { float16 v; float s[16]; } u;
        u.v = 0;
        global const REAL *from = w + (long)n * WN + (long)(16 * side) * WC + (long)TAP_AT[tap] * WT;
        if (32 * panel + n < N) {
#if WC == 1
          u.v = first_of(from, channels - 16 * side);
#else
          ONCE for (int c = 0; c < min(16, channels - 16 * side); ++c) u.s[c] = LOAD(from, (long)c * WC);
#endif
        }
        union { uint16 v[3]; uint s[3][16]; } p;
        split(u.v, p.v);
        for (int plane = 0; plane < PLANES; ++plane) {
          global uchar *tile = to + (long)tap * STEP_W + plane * 2048 + n / 16 * 1024;
#if NHWC
          for (int pair = 0; pair < 8; ++pair)
            *(global uint *)(tile + (8 * side + pair) * 64 + n % 16 * 4) = p.s[plane][2 * pair] >> 16 | p.s[plane][2 * pair + 1];
#else
          *(global upper16 *)(tile + n % 16 * 64 + 32 * side) = convert_ushort16(p.v[plane] >> 16);
#endif
        }
      }
}
