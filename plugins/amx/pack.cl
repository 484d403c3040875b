// Weights as tiles for all phases together: [group][panel of 32 target channels][block of 32 source channels]
// [tap of the phase][plane][half][1 KB].
//
// A tile's rows are pairs of source channels, of 16 target channels each; ACROSS: target channels, of 32 source channels.
//
// WN WC  elements of w from target channel to target channel and from source channel to source channel, W_GROUP from
//        group to group, WT from tap to tap, W_SIZE in all
// ORDER  0: target channels are neighbours; 1: taps, then target channels; 2: source channels, with RUN taps each
// NOTES_AT  bytes before what SCALED notes of each panel and block: the largest exponent and whether any column was
//           multiplied, and 32 exponents by which columns were
// TO_    for each tap of the kernel where its tiles begin in its phase, or -1; bytes from block to block there
#define TILE_(tap) (to + TO_AT[tap] + (((long)g * PANELS + panel) * BLOCKS + block) * TO_BLOCK[tap])
// Packs sixteen target channels of a pair of source channels.
inline void put_pair(SCALE_IN global uchar *row, uint16 even, uint16 odd) {
  uint16 p[3], q[3];
  split(SCALE as_float16(even), p);
  split(SCALE as_float16(odd), q);
  for (int plane = 0; plane < PLANES; ++plane) *(global pairs16 *)(row + plane * 2048) = p[plane] >> 16 | q[plane];
}
inline void end_tile(global uchar *tile) {
#if ACROSS
  for (int plane = 0; plane < PLANES; ++plane) {
    global pairs16 *rows = (global pairs16 *)(tile + plane * 2048);
    uint16 v[16];
    for (int i = 0; i < 16; ++i) v[i] = rows[i];
    transpose(v);
    for (int i = 0; i < 16; ++i) rows[i] = v[i];
  }
#endif
}
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global uchar *restrict to, long to_at, const Sizes given) {
  const Sizes *sizes = &given;
  const int panel = get_global_id(0) % PANELS, g = get_global_id(0) / PANELS, block = get_global_id(1);
  const long begin = (long)g * W_GROUP + (long)(32 * panel) * WN + (long)(32 * block) * WC;
  const int channels = min(32, C - 32 * block);
  to += to_at;
#if SCALED
  global int *note = (global int *)(to + NOTES_AT) + NOTE_ * (((long)g * PANELS + panel) * BLOCKS + block);
  Scale whole, *const scale = &whole;
  scale->by = 1, scale->most = 0;
  int largest = NONE, changed = 0;
  // Columns whose numbers are far from 1 are packed again, multiplied by a power of two.
  ONCE for (int side = 0, again = 0; side < 2; side += !again, to += 1024 * !again) {
#else
  ONCE for (int side = 0; side < 2; ++side, to += 1024) {
#endif
    const int rows = min(16, N - 32 * panel - 16 * side);
    const long at = begin + (long)(16 * side) * WN;
#if ORDER == 0
    ONCE for (int tap = 0; tap < ALL_TAPS; ++tap) {
      if (TO_AT[tap] < 0) continue;
      global const REAL *from = w + at + (long)tap * WT;
      ONCE for (int c = 0; c < 32; c += 2)
        put_pair(SCALE TILE_(tap) + 32 * c, as_uint16(first_of(from + c * (long)WC, c < channels ? rows : 0)),
                 as_uint16(first_of(from + (c + 1) * (long)WC, c + 1 < channels ? rows : 0)));
      end_tile(TILE_(tap));
    }
#elif ORDER == 1  // vectors of taps are turned, as many as a vector holds
    ONCE for (int first = 0; first < ALL_TAPS; first += 16)
      ONCE for (int c = 0; c < 32; c += 2) {
        uint16 v[2][16];
        for (int odd = 0; odd < 2; ++odd) {
          const long from = at + first + (c + odd) * (long)WC;
          ONCE for (int n = 0; n < 16; ++n) {
            const long left = n < rows && c + odd < channels ? min(16L, W_SIZE - from - n * (long)WN) : 0;
            v[odd][n] = as_uint16(first_of(w + from + n * (long)WN, left));
          }
          transpose(v[odd]);
        }
        ONCE for (int t = 0; t < min(16, ALL_TAPS - first); ++t)
          if (TO_AT[first + t] >= 0) put_pair(SCALE TILE_(first + t) + 32 * c, v[0][t], v[1][t]);
      }
#else  // vectors of source channels, with their taps, are turned
    ONCE for (int first = 0; first < ALL_TAPS; first += RUN)
      ONCE for (int some = 0; some < 32; some += CHUNK) {
        const int run = (channels - some) * RUN;
        uint16 v[(CHUNK * RUN + 15) / 16 * 16];
        ONCE for (int j = 0; j < CHUNK * RUN; j += 16) {
          ONCE for (int n = 0; n < 16; ++n) {
            global const REAL *from = w + at + n * (long)WN + (long)first * WT + (long)some * WC + j;
            v[j + n] = as_uint16(first_of(from, n < rows ? run - j : 0));
          }
          transpose(v + j);
        }
        ONCE for (int t = 0; t < RUN; ++t)
          if (TO_AT[first + t] >= 0)
            ONCE for (int c = 0; c < CHUNK; c += 2)
              put_pair(SCALE TILE_(first + t) + 32 * (some + c), v[c * RUN + t], v[(c + 1) * RUN + t]);
        if (some + CHUNK == 32 && TO_AT[first] >= 0) end_tile(TILE_(first));
      }
#endif
#if SCALED
    if (again) {
      again = 0, scale->by = 1, scale->most = 0;
      continue;
    }
    largest = max(largest, exponent_of_most(scale));
    union { uint16 v; uint s[16]; } most;
    union { float16 v; float s[16]; } by;
    most.v = scale->most, by.v = 1;
    for (int i = 0; i < 16; ++i) {
      const int e = exponent_of(most.s[i]), k = e == NONE || abs(e) <= FAR_ ? 0 : clamp(-e, -126, 126);
      note[2 + 16 * side + i] = k;
      by.s[i] = POWER(k);
      again |= k != 0;
    }
    scale->by = by.v, scale->most = 0;
    changed |= again;
#endif
  }
#if SCALED
  note[0] = largest, note[1] = changed;
#endif
}
