// to[i] = from[i], (+ to[i] before): between the stored type and the sums' type.
//
// OUTWARD  1: from sums (ACC) to stored elements (REAL); 0: the other way
// ADD      1: add what is there
// CHUNK    neighbouring elements of a work item
#if OUTWARD
kernel void convert(global const ACC *restrict from, long from_off, global REAL *restrict to, long to_off, long size) {
#else
kernel void convert(global const REAL *restrict from, long from_off, global ACC *restrict to, long to_off, long size) {
#endif
  from += from_off;
  to += to_off;
  const long begin = (long)get_global_id(0) * CHUNK, end = min(size, begin + CHUNK);
  for (long i = begin; i < end; ++i) {
#if OUTWARD
    ACC v = from[i];
    if (ADD) v += LOAD(to, i);
    STORE(to, i, v);
#else
    to[i] = LOAD(from, i);
#endif
  }
}
