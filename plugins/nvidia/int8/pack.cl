// packed[g][row][part][k] = w[g OCG + n][part][k], 0 beyond the last channel and product; then sums of channels' weights,
// over each of several sets of parts. A work group a row.
//
// Tensor cores leave sums of rows 8 j + 2 q and 8 j + 2 q + 1 with lane q of four: of 4 RUN rows, these are channels
// q RUN + 2 j and the next, so that a lane has RUN neighbours.
//
// OCG    channels of a group; ROWS of them packed, ALL of all groups
// SETS   sets of parts: of each its CORNERS, among parts that stand in rows of COLUMNS
// K      products of a part; PARTS of a row of ROW_BYTES; SUMS_AT bytes before the sums
#define PART (ROW_BYTES / PARTS)
constant int corners[4 * SETS] = {CORNERS};
kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void pack(global const char *restrict w, global uchar *restrict packed, long packed_at) {
  local int sums[128], part_sums[PARTS];
  const int row = get_group_id(0), tid = get_local_id(0);
  const int n = row % ROWS / (4 * RUN) * (4 * RUN) + row % 8 / 2 * RUN + row % (4 * RUN) / 8 * 2 + row % 2;
  const int sum_at = row - row % ROWS + n;
  w += (long)(row / ROWS * OCG + n) * (K * PARTS);
  packed += packed_at;
  for (int part = 0; part < PARTS; ++part) {
    int sum = 0;
    for (int k = tid * 4; k < PART; k += 512) {
      uint four = 0;
      for (int i = 0; i < 4; ++i) {
        const char v = n < OCG & k + i < K ? w[part * K + k + i] : 0;
        sum += v;
        four |= (uint)(uchar)v << 8 * i;
      }
      *(global uint *)(packed + (long)row * ROW_BYTES + part * PART + k) = four;
    }
    sums[tid] = sum;
    for (int reach = 64; reach > 0; reach /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (tid < reach) sums[tid] += sums[tid + reach];
    }
    if (tid == 0) part_sums[part] = sums[0];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int set = tid; set < SETS; set += 128) {
    constant const int *corner = corners + 4 * set;
    int sum = 0;
    for (int i = corner[0]; i < corner[1]; ++i)
      for (int j = corner[2]; j < corner[3]; ++j) sum += part_sums[i * COLUMNS + j];
    ((global int *)(packed + SUMS_AT))[set * ALL + sum_at] = sum;
  }
}
