// y[i] = x[offset + sum over axes a of index_a(i) * strides[a]], i row-major over shape: a strided view made contiguous.
//
// Values the host defines:
//   BITS          unsigned type of an element's size: uchar, ushort, uint, ulong or ulong2
// Eight axes always: those that the view lacks have size 1. Sizes and strides are arguments, counted in elements, so
// that one program serves every view.

kernel void gather(global const BITS *x, const long offset, const long8 shape, const long8 strides, global BITS *y) {
  long sizes[8], steps[8];
  vstore8(shape, 0, sizes);
  vstore8(strides, 0, steps);
  const long i = get_global_id(0);
  long rest = i, from = offset;
  for (int a = 7; a >= 0; --a) {
    from += rest % sizes[a] * steps[a];
    rest /= sizes[a];
  }
  y[i] = x[from];
}
