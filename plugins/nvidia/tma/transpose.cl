// to[g][i][t][o] = w[g][o][t][i]: weights whose rows run along the channels that the data gradient sums.
//
// G groups of O output and I input channels, T taps; TO_AT elements of ``to`` before the first. A work group transposes SIDE by SIDE
// numbers of one group and tap, so that both sides are read and written in lines.
#define SIDE 32
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void transpose(global const float *restrict w, global float *restrict to) {
  local float tile[SIDE][SIDE + 1];
  const int tid = get_local_id(0), across = (I + SIDE - 1) / SIDE, down = (O + SIDE - 1) / SIDE;
  const int block = get_group_id(0), i0 = block % across * SIDE, o0 = block / across % down * SIDE;
  const int t = block / (across * down) % T, g = block / (across * down * T);
  for (int r = tid / SIDE; r < SIDE; r += 256 / SIDE) {
    const int o = o0 + r, i = i0 + tid % SIDE;
    if (o < O & i < I) tile[r][tid % SIDE] = w[((long)(g * O + o) * T + t) * I + i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = tid / SIDE; r < SIDE; r += 256 / SIDE) {
    const int i = i0 + r, o = o0 + tid % SIDE;
    if (o < O & i < I) to[TO_AT + ((long)(g * I + i) * T + t) * O + o] = tile[tid % SIDE][r];
  }
}
