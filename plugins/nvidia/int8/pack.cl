// packed[g][n][k] = w[g OCG + n][k], 0 beyond the last channel and product; then the sum of each row. A work group a row.
//
// OCG  channels of a group; ROWS of them packed; K products of a sum, ROW_BYTES of them packed; SUMS_AT bytes before the sums
kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void pack(global const char *restrict w, global uchar *restrict packed, long packed_at) {
  local int part[128];
  const int row = get_group_id(0), tid = get_local_id(0), n = row % ROWS;
  w += (long)(row / ROWS * OCG + n) * K;
  packed += packed_at;
  int sum = 0;
  for (int k = tid * 4; k < ROW_BYTES; k += 512) {
    uint four = 0;
    for (int i = 0; i < 4; ++i) {
      const char v = n < OCG & k + i < K ? w[k + i] : 0;
      sum += v;
      four |= (uint)(uchar)v << 8 * i;
    }
    *(global uint *)(packed + (long)row * ROW_BYTES + k) = four;
  }
  part[tid] = sum;
  for (int reach = 64; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (tid < reach) part[tid] += part[tid + reach];
  }
  if (tid == 0) ((global int *)(packed + SUMS_AT))[row] = part[0];
}
