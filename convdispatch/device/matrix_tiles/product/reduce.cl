// Adds the parts in their order and applies the epilogue. Weights are reordered from [group][m][tap][8 c8].
//
// size, part_stride   elements of the output, and from one part to the next; the first part starts at ``at``
// PARTS         the number of parts; as a kernel argument it made the kernel up to a quarter slower
// WEIGHTS       0: parts have the output's layout; 1: taps follow channels; 2: channels follow taps (channels last)
// first, second sizes of the output's last axis and of the axis before it; for data, elements of a channel and channels
// columns, step elements of a part's row [tap][8 c8], and of a tap in it
// FOLD          1: a tap is a row of the kernel, with ``window`` taps as channels
#include <convdispatch/output.cl>
kernel void reduce(global const float *restrict partial, OUT_PARAMS, const long at, const OUT_INDEX size, const OUT_INDEX part_stride, DIVISOR(first), DIVISOR(second), const int columns, const int step, DIVISOR(window)) {
  const OUT_INDEX i = get_global_id(0);
  if (i >= size) return;
  const OUT_INDEX next = DIVIDED(i, first), outer = DIVIDED(next, second);
  const int inner = i - next * first, middle = next - outer * second;
#if WEIGHTS
#if WEIGHTS == 1
  const int tap = inner, c = middle, channels = second;
#else
  const int tap = middle, c = inner, channels = first;
#endif
#if FOLD
  const int row = DIVIDED(tap, window), column = row * step + (tap - row * (int)window) * channels + c;
#else
  const int column = tap * step + c;
#endif
  partial += at + outer * (OUT_INDEX)columns + column;
#else
  partial += at + i;
#endif
  float v = partial[0];
#if PARTS > 1
  // Many loads are in flight at once, because small outputs have too few work items to hide the latency of each load.
#pragma unroll 16
  for (int part = 1; part < PARTS; ++part) v += partial[(OUT_INDEX)part * part_stride];
#endif
  put(OUT_ARGS, v, i, WEIGHTS ? 0 : middle);
}
