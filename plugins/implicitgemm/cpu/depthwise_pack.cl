// packed = the weights as [tap][channel], channels rounded up to vectors.
//
// A work item takes LANES channels.
//
// CT, G        channels rounded up to vectors, channels
// T? KS? KH_ KW_ WG  taps, from a tap's kernel position to the next one's, kernel's size; EMPTY: no tap reaches anything
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off, int fd, int fh, int fw) {
  packed += packed_off;
  const int g0 = get_global_id(0) * LANES;
  ONCE for (int g = g0; g < g0 + LANES; ++g)
    ONCE for (int tz = 0; tz < TD; ++tz)
      ONCE for (int ty = 0; ty < TH; ++ty)
        ONCE for (int tx = 0; tx < TW; ++tx) {
          const int tap = (tz * TH + ty) * TW + tx, at = ((fd + tz * KSD) * KH_ + fh + ty * KSH) * KW_ + fw + tx * KSW;
          packed[tap * CT + g] = EMPTY || g >= G ? (ACC)0 : LOAD(w, g * WG + at);
        }
}
