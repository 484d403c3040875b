// First layers, NHWC: what the taps along a row read of a pixel's neighbours are NUMBERS numbers in a row of x.
//
// gather  to[row][p][e] = x[row][(p STEP - PAD) C + e], zeros outside of the row and from NUMBERS to WIDE
// widen   to[row][e] = w[row][e], zeros from NUMBERS to WIDE
//
// NUMBER  an element's type; LANES of them are 16 bytes; ROW elements of x's rows, P places along a row
// X_AT, W_AT  elements of ``to`` before the first
#define SEGMENT 128
#define CHUNKS (WIDE / LANES)
#define LINE ((SEGMENT - 1) * STEP * C + NUMBERS)
#define PAIRS (LANES == 8 && STEP * C % 2 == 0)
#if GATHER
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void gather(global const NUMBER *restrict x, global NUMBER *restrict to) {
  local NUMBER line[LINE + 1] __attribute__((aligned(4)));
  const int tid = get_local_id(0), segments = (P + SEGMENT - 1) / SEGMENT;
  const int row = get_group_id(0) / segments, first = get_group_id(0) % segments * SEGMENT;
  x += (long)row * ROW;
  for (int i = tid; i < LINE; i += 256) {
    const int from = (first * STEP - PAD) * C + i;
    line[i] = from >= 0 & from < ROW ? x[from] : 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < SEGMENT * CHUNKS; i += 256) {
    const int p = i / CHUNKS, e = i % CHUNKS * LANES;
    if (first + p >= P) break;
    union { uint4 all; uint pairs[4]; NUMBER each[LANES]; } v;
#if PAIRS  // two numbers of 16 bits at once
    local const uint *from = (local const uint *)(line + p * STEP * C + e);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int left = NUMBERS - e - 2 * j;
      v.pairs[j] = left > 1 ? from[j] : left == 1 ? from[j] & 0xffff : 0;
    }
#else
#pragma unroll
    for (int j = 0; j < LANES; ++j) v.each[j] = e + j < NUMBERS ? line[p * STEP * C + e + j] : 0;
#endif
    *(global uint4 *)(to + X_AT + ((long)row * P + first + p) * WIDE + e) = v.all;
  }
}
#else
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void widen(global const NUMBER *restrict w, global NUMBER *restrict to) {
  const int i = get_global_id(0), row = i / WIDE, e = i % WIDE;
  if (row < ROWS) to[W_AT + i] = e < NUMBERS ? w[(long)row * NUMBERS + e] : 0;
}
#endif
