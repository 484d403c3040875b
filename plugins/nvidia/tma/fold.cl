// to[j OC + m][i IC + c] = w[m][c] where i = j, else 0: a 1x1 kernel's weights for PIXELS neighbouring pixels together.
//
// OC, IC  channels of a pixel; TO_AT elements of ``to`` before the first. A work item writes eight numbers.
kernel void fold(global const ushort *restrict w, global ushort *restrict to) {
  const int chunk = get_global_id(0), c8 = IC / 8, row = chunk / (PIXELS * c8), column = chunk % (PIXELS * c8);
  if (row >= PIXELS * OC) return;
  const int m = row % OC, c = column % c8;
  const uint4 zero = (uint4)(0);
  *(global uint4 *)(to + TO_AT + chunk * 8L) = row / OC == column / c8 ? *(global const uint4 *)(w + m * IC + c * 8) : zero;
}
