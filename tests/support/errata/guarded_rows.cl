// y[r, c] = largest of x[r, c - 1 .. c + 1]. Wrong for 2026.2 of Intel's compiler: the read of column c - 1, which
// the vectors mask for lane 0, loses the row, because its index is a value too (`place`).
kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void rows(global const float *restrict x, global float *restrict y) {
  for (int r = 0; r < H; ++r)
    for (int c = 0; c < W; ++c) {
      float best = -INFINITY;
      int place = -1;
      for (int k = -1; k <= 1; ++k) {
        const int column = c + k;
        const int at = r * W + column;
        if (column >= 0 && column < W) {
          const float v = x[at];
          best = place < 0 || v > best ? v : best;
          place = at;
        }
      }
      y[r * W + c] = best;
    }
}
