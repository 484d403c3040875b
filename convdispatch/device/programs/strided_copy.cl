// y[begin + i] = x[offset + sum over axes a of index_a(i) * s_a], i row-major: a strided view made contiguous.
//
// Macros that the host defines:
//   BITS          unsigned type of an element's size: uchar, ushort, uint, ulong or ulong2
//   RUN           elements that a work item copies one after the other; 1 on a GPU
// There are always eight axes, of size 1 beyond the view's own. Sizes n1..n7 (n0 is not needed) and strides s0..s7 are
// arguments, counted in elements, so that one program serves every view. They are scalars, because PoCL 3 cannot load a
// kernel with vector arguments from its cache.

#if RUN > 1
__attribute__((reqd_work_group_size(1, 1, 1)))
#endif
kernel void strided(global const BITS *x, const long offset, const long size, const long n1, const long n2,
                    const long n3, const long n4, const long n5, const long n6, const long n7, const long s0,
                    const long s1, const long s2, const long s3, const long s4, const long s5, const long s6,
                    const long s7, global BITS *y, const long begin) {
#define AXIS(n, s) from += rest % n * s, rest /= n
#define REST()    \
  AXIS(n6, s6);   \
  AXIS(n5, s5);   \
  AXIS(n4, s4);   \
  AXIS(n3, s3);   \
  AXIS(n2, s2);   \
  AXIS(n1, s1);   \
  from += rest * s0
#if RUN > 1
  // An axis takes one division for each row, or for each part of a row.
  const long end = min(((long)get_global_id(0) + 1) * RUN, size);
  for (long i = (long)get_global_id(0) * RUN, count; i < end; i += count) {
    long rest = i / n7, from = offset;
    const long first = i - rest * n7;
    REST();
    from += first * s7;
    count = min(n7 - first, end - i);
    for (long j = 0; j < count; ++j) y[begin + i + j] = x[from + j * s7];
  }
#else
  const long i = get_global_id(0);
  long rest = i, from = offset;
  AXIS(n7, s7);
  REST();
  y[begin + i] = x[from];
#endif
}
