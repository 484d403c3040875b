// sums[c] = sum over rows of g[row, c], in float32: a matrix of pixels and channels in two launches, each sum in an order
// that follows from the sizes alone.
//
// Values the host defines:
//   VECTOR    neighbouring channels that a work item reads at once, 16 bytes (convdispatch/words.cl)
//   GROUP     work items of a group of the first launch, at most
//   DEEP      work items of a group of the second launch that share a channel
#include <convdispatch/words.cl>

// A group has some vectors of channels (axis 0) in some rows at once (axis 1), and every get_num_groups(1)-th such set of
// rows. parts[group, c] is what it sums.
kernel void channel_parts(global const REAL *restrict g, global float *restrict parts, const uint rows,
                          const uint channels) {
  local float met[GROUP * VECTOR];
  const uint columns = get_local_size(0), deep = get_local_size(1), lane = get_local_id(0), level = get_local_id(1);
  const uint first = get_group_id(0) * columns * VECTOR, group = get_group_id(1), step = get_num_groups(1) * deep;
  g += first + lane * VECTOR;
  Part low = (Part)(0.0f);
#if PARTS > 1
  Part high = low;
#define ADD(raw) low += PART(raw, 0), high += PART(raw, 1)
#else
#define ADD(raw) low += PART(raw, 0)
#endif
  uint row = group * deep + level;
  for (; row + 3 * step < rows; row += 4 * step) {  // four reads on their way at once
    const Raw a = RAW(g + (ulong)row * channels), b = RAW(g + (ulong)(row + step) * channels);
    const Raw c = RAW(g + (ulong)(row + 2 * step) * channels), d = RAW(g + (ulong)(row + 3 * step) * channels);
    ADD(a);
    ADD(b);
    ADD(c);
    ADD(d);
  }
  for (; row < rows; row += step) {
    const Raw a = RAW(g + (ulong)row * channels);
    ADD(a);
  }
  local float *mine = met + (level * columns + lane) * VECTOR;
  vstore4(low, 0, mine);
#if PARTS > 1
  vstore4(high, 1, mine);
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint c = level * columns + lane; c < columns * VECTOR; c += columns * deep) {
    float sum = 0;
    for (uint other = 0; other < deep; ++other) sum += met[other * columns * VECTOR + c];
    parts[(ulong)group * channels + first + c] = sum;
  }
}

// The parts' sums: VECTOR channels a group.
kernel __attribute__((reqd_work_group_size(VECTOR, DEEP, 1)))
void channel_sums(global const float *restrict parts, global REAL *restrict sums, const uint groups,
                  const uint channels) {
  local float met[DEEP][VECTOR];
  const uint c = get_group_id(0) * VECTOR + get_local_id(0), level = get_local_id(1);
  float sum = 0;
  for (uint group = level; group < groups; group += DEEP) sum += parts[group * channels + c];
  met[level][get_local_id(0)] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (level) return;
  for (uint other = 1; other < DEEP; ++other) sum += met[other][get_local_id(0)];
  STORE(sums, c, sum);
}
