// The sum of the parts, in their order, and what follows it. Weights go from [group][m][tap][8 c8] to their own order.
//
// size, parts, apart  elements of the output; of each how many parts, which lie so far apart, from ``at`` on
// WEIGHTS       0: parts lie as the output does; 1: taps follow channels; 2: channels follow taps (channels last)
// first, second sizes of the output's last axis and of the one before it; of data, elements of a channel, and channels
// columns, step elements of a row [tap][8 c8] of a part, and of a tap of it
// FOLD          1: a tap is a row of the window; window: its taps
#include <convdispatch/output.cl>
kernel void reduce(global const float *restrict partial, OUT_PARAMS, const long at, const OUT_INDEX size, const OUT_INDEX apart, const int parts, DIVISOR(first), DIVISOR(second), const int columns, const int step, DIVISOR(window)) {
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
  for (int part = 1; part < parts; part += 8) {
    float more[8];  // loads in flight at once; what is added for a part that is not there changes no bit
#pragma unroll
    for (int e = 0; e < 8; ++e) more[e] = part + e < parts ? partial[(OUT_INDEX)(part + e) * apart] : -0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) v += more[e];
  }
  put(OUT_ARGS, v, i, WEIGHTS ? 0 : middle);
}
