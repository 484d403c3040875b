// to[j] = from[j], to[j] = from[2 j] and to[j] = 0, for runs of some elements: in vectors, the last of which may overlap the one before.
//
// SRC, DST   element types; SAME: they are one type. GET(p, i) turns one element into the other type
// TO         address space of what is written
// V16 V8 V4  vectors of DST
typedef V16 __attribute__((aligned(DSTSIZE))) run16;
typedef V8 __attribute__((aligned(DSTSIZE))) run8;
typedef V4 __attribute__((aligned(DSTSIZE))) run4;

#define NEXT(n, p) (*(global const run##n *)(p))
// Ends with the last element that is taken, so that nothing beyond a tensor is read.
#define SECOND(n, p) (V##n)(NEXT(n, p).even, NEXT(n, (p) + n - 1).odd)

// to[j] = from[j STEP], of which TAKE(n, p) reads n.
#if SAME
#define COPY(name, STEP, TAKE) \
  inline void name(TO DST *restrict to, global const SRC *restrict from, int n) { \
    if (n >= 16) { \
      for (int j = 0; j + 16 <= n; j += 16) *(TO run16 *)(to + j) = TAKE(16, from + j * STEP); \
      if (n & 15) *(TO run16 *)(to + n - 16) = TAKE(16, from + (n - 16) * STEP); \
    } else if (n >= 8) { \
      *(TO run8 *)to = TAKE(8, from); \
      *(TO run8 *)(to + n - 8) = TAKE(8, from + (n - 8) * STEP); \
    } else if (n >= 4) { \
      *(TO run4 *)to = TAKE(4, from); \
      *(TO run4 *)(to + n - 4) = TAKE(4, from + (n - 4) * STEP); \
    } else \
      for (int j = 0; j < n; ++j) to[j] = GET(from, j * STEP); \
  }
#else
#define COPY(name, STEP, TAKE) \
  inline void name(TO DST *restrict to, global const SRC *restrict from, int n) { \
    for (int j = 0; j < n; ++j) to[j] = GET(from, j * STEP); \
  }
#endif
COPY(copy_run, 1, NEXT)
COPY(copy_second, 2, SECOND)

inline void zero_run(TO DST *restrict to, int n) {
  for (; n >= 16; n -= 16, to += 16) *(TO run16 *)to = (run16)(0);
  for (int j = 0; j < n; ++j) to[j] = 0;
}
