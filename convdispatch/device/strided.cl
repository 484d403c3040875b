// y[i] = x[offset + sum over axes a of index_a(i) * s_a], i row-major: a strided view made contiguous.
//
// Values the host defines:
//   BITS          unsigned type of an element's size: uchar, ushort, uint, ulong or ulong2
// Eight axes always: those that the view lacks have size 1. Sizes n1..n7 (n0 is not needed) and strides s0..s7 are
// arguments, counted in elements, so that one program serves every view. They are scalars because PoCL 3 loses a
// kernel with vector arguments when it reads it back from its cache.

kernel void strided(global const BITS *x, const long offset, const long n1, const long n2, const long n3, const long n4,
                    const long n5, const long n6, const long n7, const long s0, const long s1, const long s2,
                    const long s3, const long s4, const long s5, const long s6, const long s7, global BITS *y) {
  const long i = get_global_id(0);
  long rest = i, from = offset;
#define AXIS(n, s) from += rest % n * s, rest /= n
  AXIS(n7, s7);
  AXIS(n6, s6);
  AXIS(n5, s5);
  AXIS(n4, s4);
  AXIS(n3, s3);
  AXIS(n2, s2);
  AXIS(n1, s1);
  y[i] = x[from + rest * s0];
}
