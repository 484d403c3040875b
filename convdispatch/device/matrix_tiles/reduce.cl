// out = epilogue(sum of the parts), in an order that depends only on the number of parts.
//
// size   elements of a part, which has the output's layout
// PARTS  the number of parts; as a kernel argument it made the kernel up to a quarter slower
// LANES  work items of an element: lane i adds parts i, i + LANES, ...; then the lanes' sums are added in order
// inner, channels  elements from channel to channel, and the number of channels
#include <convdispatch/output.cl>
#define WIDTH (256 / LANES)
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void reduce(global const float *restrict partial, OUT_PARAMS, const OUT_INDEX size, DIVISOR(inner), DIVISOR(channels)) {
  const int lane = get_local_id(0) / WIDTH;
  const OUT_INDEX i = (OUT_INDEX)get_group_id(0) * WIDTH + get_local_id(0) % WIDTH;
  float v = 0;
  if (i < size)
#pragma unroll 4
    for (int part = lane; part < PARTS; part += LANES) v += partial[(OUT_INDEX)part * size + i];
#if LANES > 1
  local float sums[256];
  sums[get_local_id(0)] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lane == 0)
    for (int other = 1; other < LANES; ++other) v += sums[other * WIDTH + get_local_id(0)];
#endif
  const OUT_INDEX channel = DIVIDED(i, inner);
  if (lane == 0 && i < size) put(OUT_ARGS, v, i, channel - DIVIDED(channel, channels) * channels);
}
