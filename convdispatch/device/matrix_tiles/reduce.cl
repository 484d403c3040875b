// out = epilogue(sum of the parts), in an order that depends only on the number of parts.
//
// at, size, part_stride  offset of the first part, elements of the output, and from part to part
// parts   their number
// LANES   work items of an element: lane i adds parts i, i + LANES, ...; then the lanes' sums are added in order
// AHEAD   parts that a lane reads at once after its first one
// ITEMS   work items of a work group
// ORDER   of a part's elements. 0: the output's, whose channels ``channels`` are ``inner`` elements long. 1: weights whose
//         taps precede channels in the parts, [tap: channels][channel: inner], and follow them in the output. 2, 3: rows
//         [tap][8 c8] of ``columns``, a tap of ``step``; in the output taps follow channels (2), or channels taps (3)
// window  2, 3: taps as channels of a row of the kernel, which then is a tap; otherwise 1
#include <convdispatch/output.cl>
#define WIDTH (ITEMS / LANES)
#if ORDER > 1
#define ROW_PARAMS , const int columns, const int step, DIVISOR(window)
#else
#define ROW_PARAMS
#endif
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void reduce(global const ACC *restrict partial, OUT_PARAMS, const int parts, const long at, const OUT_INDEX size, const OUT_INDEX part_stride, DIVISOR(inner), DIVISOR(channels) ROW_PARAMS) {
  const int lane = LANES > 1 ? get_local_id(0) / WIDTH : 0;
  const OUT_INDEX i = (OUT_INDEX)get_group_id(0) * WIDTH + get_local_id(0) % WIDTH;
  const OUT_INDEX next = DIVIDED(i, inner), outer = DIVIDED(next, channels);
  const int last = i - next * inner, middle = next - outer * channels;
#if ORDER > 1
  const int tap = ORDER == 2 ? last : middle, c = ORDER == 2 ? middle : last;
  const int row = DIVIDED(tap, window), column = row * step + (tap - row * window) * (ORDER == 2 ? channels : inner) + c;
  partial += at + outer * (OUT_INDEX)columns + column;
#else
  partial += at + i;
#endif
  ACC v = 0;
  if (i < size && lane < parts) {
    v = partial[(OUT_INDEX)lane * part_stride];
    // Many loads are in flight at once, because small outputs have too few work items to hide the latency of each load.
    for (int first = lane + LANES; first < parts; first += AHEAD * LANES) {
      ACC next[AHEAD];
#pragma unroll
      for (int n = 0; n < AHEAD; ++n) next[n] = first + n * LANES < parts ? partial[(OUT_INDEX)(first + n * LANES) * part_stride] : 0;
#pragma unroll
      for (int n = 0; n < AHEAD; ++n)
        if (first + n * LANES < parts) v += next[n];
    }
  }
#if LANES > 1
  local ACC sums[ITEMS];
  sums[get_local_id(0)] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lane == 0)
    for (int other = 1; other < LANES; ++other) v += sums[other * WIDTH + get_local_id(0)];
#endif
  if (lane == 0 && i < size) put(OUT_ARGS, v, ORDER == 1 ? (outer * inner + last) * channels + middle : i, ORDER ? 0 : middle);
}
