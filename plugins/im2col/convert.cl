// to[i] = from[i] (+ to[i]): converts between the stored type and the sums' type.
//
// OUTWARD  1: from sums (ACC) to stored elements (REAL); 0: from stored elements to sums
// ADD      1: add to the previous values
// CHUNK    consecutive elements of a work item; 16 and more are converted sixteen at a time
#if CHUNK >= 16
#if FLOAT16
#define WIDE(p) vload_half16(0, p)
#define NARROWED(v, p) vstore_half16_rte(v, 0, p)
#elif BFLOAT16
#define WIDE(p) convert_as_bfloat16_float16(vload16(0, p))
#define NARROWED(v, p) vstore16(convert_bfloat16_as_ushort16(v), 0, p)
#else
#error "convert.cl widens float16 and bfloat16"
#endif
#endif
#if OUTWARD
kernel void convert(global const ACC *restrict from, long from_off, global REAL *restrict to, long to_off, long size) {
#else
kernel void convert(global const REAL *restrict from, long from_off, global ACC *restrict to, long to_off, long size) {
#endif
  from += from_off;
  to += to_off;
  const long begin = (long)get_global_id(0) * CHUNK, end = min(size, begin + CHUNK);
  long i = begin;
#if CHUNK >= 16
  for (; i + 16 <= end; i += 16) {
#if OUTWARD
    float16 v = vload16(0, from + i);
    if (ADD) v += WIDE(to + i);
    NARROWED(v, to + i);
#else
    vstore16(WIDE(from + i), 0, to + i);
#endif
  }
#endif
  for (; i < end; ++i) {
#if OUTWARD
    ACC v = from[i];
    if (ADD) v += LOAD(to, i);
    STORE(to, i, v);
#else
    to[i] = LOAD(from, i);
#endif
  }
}
