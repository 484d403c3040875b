// w[c, tap] = sum over parts of partial[part][tap][c] [+ w[c, tap]], in an order that only their number decides.
//
// CHANNELS, TAPS  of the weights, WEIGHTS their product; COUNT parts
// ACROSS          neighbouring work items that have neighbouring channels; DEEP share an element's sum
#if ACCUMULATE
#define HELD(i) LOAD(w, i)
#else
#define HELD(i) 0
#endif
kernel __attribute__((reqd_work_group_size(ACROSS * DEEP, 1, 1)))
void fold(global const ACC *restrict partial, global REAL *restrict w NUMBERS) {
  local ACC sums[ACROSS * DEEP];
  const int item = get_local_id(0), i = get_group_id(0) * ACROSS + item % ACROSS;
  ACC v = 0;
  if (i < WEIGHTS)
#pragma unroll 4
    for (int part = item / ACROSS; part < COUNT; part += DEEP) v += partial[(long)part * WEIGHTS + i];
  sums[item] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < ACROSS && i < WEIGHTS) {
    for (int other = 1; other < DEEP; ++other) v += sums[other * ACROSS + item];
    const int tap = DIVIDED(i, CHANNELS), at = (i - tap * CHANNELS) * TAPS + tap;
    v += HELD(at);
    STORE(w, at, v);
  }
}
