// p[i] = sum over parts of p[part * SIZE + i], for four neighbours i: the parts of the weights' gradient's sums.
//
// AT     elements before the first part; SIZE elements of a part; PARTS
#include <convdispatch/vectors.cl>
typedef ACC4 __attribute__((aligned(4 * sizeof(ACC)))) quad;
kernel void add_parts(global ACC *restrict p) {
  const long i = (long)get_global_id(0) * 4;
  if (i >= SIZE) return;
  p += AT + i;
  ACC4 v = *(global const quad *)p;
#pragma unroll 8
  for (int part = 1; part < PARTS; ++part) v += *(global const quad *)(p + part * (long)SIZE);
  *(global quad *)p = v;
}
