// Copies contiguous elements in the type of sums, and writes zeros. The last vector of a run ends at the run's end, so
// some elements are copied twice.
//
// LANES, V  elements of a vector of sums, its type
#include <convdispatch/lanes.cl>
inline void copy_run(global ACC *restrict to, global const REAL *restrict from, int size) {
  int i = 0;
  if (size >= LANES) {
    for (; i + LANES <= size; i += LANES) STOREW(to + i, LOADV(from + i));
    if (i < size) STOREW(to + size - LANES, LOADV(from + size - LANES));
    return;
  }
#if !FLOAT16 && !BFLOAT16
  typedef WITH_LANES(ACC, 4, ) __attribute__((aligned(sizeof(ACC)))) four;
  if (size >= 4) {
    ONCE for (; i + 4 <= size; i += 4) *(global four *)(to + i) = *(global const four *)(from + i);
    *(global four *)(to + size - 4) = *(global const four *)(from + size - 4);
    return;
  }
#endif
  ONCE for (; i < size; ++i) to[i] = LOAD(from, i);
}

inline void zero_run(global ACC *restrict to, int size) {
  int i = 0;
  for (; i + LANES <= size; i += LANES) STOREW(to + i, (V)(0));
  ONCE for (; i < size; ++i) to[i] = 0;
}
