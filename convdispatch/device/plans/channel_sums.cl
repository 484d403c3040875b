// Sums of the channels of a tensor as it is stored, in an order that only its shape decides.
//
//   sums   part p of channel c: count, mean, sum of squared distances (NORM_SLOPE: sum of dx, sum of dx (saved - mean))
//   merge  the same of GROUP neighbouring parts each, by the formula of Chan, Golub and LeVeque (1979); WIDTH channels and
//          LANES work items of each in a work group
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

// A work group merges GROUP parts of WIDTH channels: LANES work items take a run of parts of a channel each, then pairs of
// them merge what they have, so that few loads and few merges wait for each other.
kernel __attribute__((reqd_work_group_size(WIDTH, LANES, 1)))
void merge(global const ACC *from, global ACC *to, long from_at, long to_at, int parts) {
  local moments runs[LANES][WIDTH];
  const int i = get_local_id(0), lane = get_local_id(1), c = get_global_id(0), group = get_group_id(1);
  const int left = min(GROUP, parts - group * GROUP), share = (left + LANES - 1) / LANES, last = min(left, (lane + 1) * share);
  moments total = {0, 0, 0};
  if (c < CHANNELS) {
    from += from_at + (long)group * GROUP * ROWS * CHANNELS + c;
#pragma unroll 8
    for (int part = lane * share; part < last; ++part) {
      global const ACC *row = from + (long)part * ROWS * CHANNELS;
#if NORM_SLOPE
      total.mean += row[0];
      total.squares += row[CHANNELS];
#else
      total = merged(total, (moments){row[0], row[CHANNELS], row[2 * CHANNELS]});
#endif
    }
  }
  runs[lane][i] = total;
  for (int apart = 1; apart < LANES; apart *= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane % (2 * apart) == 0) {
      const moments next = runs[lane + apart][i];
#if NORM_SLOPE
      total.mean += next.mean;
      total.squares += next.squares;
#else
      total = merged(total, next);
#endif
      runs[lane][i] = total;
    }
  }
  if (lane > 0 || c >= CHANNELS) return;
  to += to_at + (long)group * ROWS * CHANNELS + c;
#if !NORM_SLOPE
  *to = total.count;
  to += CHANNELS;
#endif
  to[0] = total.mean;
  to[CHANNELS] = total.squares;
}
