// to[j] = from[j], and to[j] = 0, for runs of some elements: in vectors, the last of which may overlap the one before.
//
// SRC, DST   element types; SAME: they are one type. GET(p, i) turns one element into the other type
// TO         address space of what is written
// V16 V8 V4  vectors of DST
typedef V16 __attribute__((aligned(DSTSIZE))) run16;
typedef V8 __attribute__((aligned(DSTSIZE))) run8;
typedef V4 __attribute__((aligned(DSTSIZE))) run4;

inline void copy_run(TO DST *restrict to, global const SRC *restrict from, int n) {
#if SAME
  if (n >= 16) {
    for (int j = 0; j + 16 <= n; j += 16) *(TO run16 *)(to + j) = *(global const run16 *)(from + j);
    if (n & 15) *(TO run16 *)(to + n - 16) = *(global const run16 *)(from + n - 16);
  } else if (n >= 8) {
    *(TO run8 *)to = *(global const run8 *)from;
    *(TO run8 *)(to + n - 8) = *(global const run8 *)(from + n - 8);
  } else if (n >= 4) {
    *(TO run4 *)to = *(global const run4 *)from;
    *(TO run4 *)(to + n - 4) = *(global const run4 *)(from + n - 4);
  } else
#endif
    for (int j = 0; j < n; ++j) to[j] = GET(from, j);
}

inline void zero_run(TO DST *restrict to, int n) {
  for (; n >= 16; n -= 16, to += 16) *(TO run16 *)to = (run16)(0);
  for (int j = 0; j < n; ++j) to[j] = 0;
}
