// to[j] = from[j], and to[j] = 0, for runs of some elements: vectors first, then what is left in halves.
//
// SRC, DST   element types; SAME: they are one type. GET(p, i) turns one element into the other type
// V16 V8 V4  vectors of DST
typedef V16 __attribute__((aligned(DSTSIZE))) run16;
typedef V8 __attribute__((aligned(DSTSIZE))) run8;
typedef V4 __attribute__((aligned(DSTSIZE))) run4;

inline void copy_run(global DST *restrict to, global const SRC *restrict from, int n) {
#if SAME
  for (; n >= 16; n -= 16, to += 16, from += 16) *(global run16 *)to = *(global const run16 *)from;
  if (n & 8) {
    *(global run8 *)to = *(global const run8 *)from;
    to += 8;
    from += 8;
  }
  if (n & 4) {
    *(global run4 *)to = *(global const run4 *)from;
    to += 4;
    from += 4;
  }
  n &= 3;
#endif
  for (int j = 0; j < n; ++j) to[j] = GET(from, j);
}

inline void zero_run(global DST *restrict to, int n) {
  for (; n >= 16; n -= 16, to += 16) *(global run16 *)to = (run16)(0);
  for (int j = 0; j < n; ++j) to[j] = 0;
}
