// to[j OC + m][i IC + c] = w[m][c] where i = j, else 0: a 1x1 kernel's weights for PIXELS neighbouring pixels together.
//
// OC, IC  channels of a pixel; C8 and ROW chunks of eight of a pixel and of a row; TO_AT elements of ``to`` before the first.
// A work item writes eight numbers. The numbers are arguments.
kernel void fold(global const ushort *restrict w, global ushort *restrict to NUMBERS) {
  const int chunk = get_global_id(0), row = DIVIDED(chunk, ROW), column = chunk - row * ROW;
  if (row >= PIXELS * OC) return;
  const int j = DIVIDED(row, OC), i = DIVIDED(column, C8), m = row - j * OC, c = column - i * C8;
  const uint4 zero = (uint4)(0);
  *(global uint4 *)(to + TO_AT + chunk * 8L) = j == i ? *(global const uint4 *)(w + m * IC + c * 8) : zero;
}
