// Sums of the channels of a tensor as it is stored, in an order that only its shape decides.
//
//   sums   part p of channel c: count, mean, sum of squared distances (NORM_SLOPE: sum of dx, sum of dx (saved - mean))
//   merge  the same of GROUP neighbouring parts each, by the formula of Chan, Golub and LeVeque (1979)
//
// CHANNELS       of the tensor; INNER elements between two channels: pixels (channels first) or 1 (channels last)
// COUNT          elements of a channel, LENGTH of a part; STEP elements from one of a part's elements to its next
// START          offset of the parts, in numbers
// ROWS           numbers of a part for each channel: parts are [part][row][channel]
#include <convdispatch/norm.cl>
#include <convdispatch/moments.cl>
#define BLOCK 8

#ifdef INNER
inline long offset(long i, int c) { return (i / INNER * CHANNELS + c) * INNER + i % INNER; }

#if NORM_SLOPE
kernel void sums(global const REAL *out, global ACC *parts, global const REAL *saved, global const ACC *norm) {
  const int c = get_global_id(CHANNEL_AXIS), part = get_global_id(1 - CHANNEL_AXIS);
  const long first = STEP == 1 ? (long)part * LENGTH : part;
  const int size = STEP == 1 ? min((long)LENGTH, COUNT - first) : (COUNT - part + STEP - 1) / STEP;
  ACC sum = 0, product = 0;
  for (int start = 0; start < size; start += BLOCK) {
    ACC block_sum = 0, block_product = 0;
    for (int i = start; i < min(start + BLOCK, size); ++i) {
      const long at = offset(first + (long)i * STEP, c);
      const ACC v = LOAD(out, at);
      block_sum += v;
      block_product += v * (LOAD(saved, at) - norm[c]);
    }
    sum += block_sum;
    product += block_product;
  }
  parts += START + (long)part * ROWS * CHANNELS + c;
  parts[0] = sum;
  parts[CHANNELS] = product;
}
#else
kernel void sums(global const REAL *out, global ACC *parts) {
  const int c = get_global_id(CHANNEL_AXIS), part = get_global_id(1 - CHANNEL_AXIS);
  const long first = STEP == 1 ? (long)part * LENGTH : part;
  const int size = STEP == 1 ? min((long)LENGTH, COUNT - first) : (COUNT - part + STEP - 1) / STEP;
  // Means are relative to the part's first value, so that a mean far from zero costs no digits.
  const ACC origin = LOAD(out, offset(first, c));
  moments total = {0, 0, 0};
  for (int start = 0; start < size; start += BLOCK) {
    const int n = min(BLOCK, size - start);
    ACC v[BLOCK], sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) sum += v[i] = LOAD(out, offset(first + (long)(start + i) * STEP, c)) - origin;
    for (int i = 0; i < n; ++i) squares += (v[i] - sum / n) * (v[i] - sum / n);
    total = merged(total, (moments){n, sum / n, squares});
  }
  parts += START + (long)part * ROWS * CHANNELS + c;
  parts[0] = total.count;
  parts[CHANNELS] = origin + total.mean;
  parts[2 * CHANNELS] = total.squares;
}
#endif
#endif

kernel void merge(global const ACC *from, global ACC *to, long from_at, long to_at, int parts) {
  const int c = get_global_id(0), group = get_global_id(1), last = min(parts, (group + 1) * GROUP);
  from += from_at + c;
  to += to_at + (long)group * ROWS * CHANNELS + c;
#if NORM_SLOPE
  ACC sum = 0, product = 0;
  for (int part = group * GROUP; part < last; ++part) {
    sum += from[(long)part * ROWS * CHANNELS];
    product += from[((long)part * ROWS + 1) * CHANNELS];
  }
  to[0] = sum;
  to[CHANNELS] = product;
#else
  moments total = {0, 0, 0};
  for (int part = group * GROUP; part < last; ++part) {
    global const ACC *row = from + (long)part * ROWS * CHANNELS;
    total = merged(total, (moments){row[0], row[CHANNELS], row[2 * CHANNELS]});
  }
  to[0] = total.count;
  to[CHANNELS] = total.mean;
  to[2 * CHANNELS] = total.squares;
#endif
}
