// y[r, k] = exp(x[r, k] - m_r) / sum over j of exp(x[r, j] - m_r), m_r the largest of row r: one work group a row.
//
// Values the host defines:
//   WIDTH         elements of a row
//   ITEMS         work items of a row, a power of two
//   VECTORS       1 where a CPU computes float32: one work item a group, 16 elements of a row at a time
//   ROWS          with VECTORS, the rows of a work group
//   HELD          1 to keep a row's elements in registers between passes (GPUs, short rows)
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)
// Offsets count elements to the first. Work item t of a row takes the elements t, t + ITEMS, ...

#define REDUCE(combine)                                                  \
  for (int span = ITEMS / 2; span > 0; span /= 2) {                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                        \
    if (t < span) part[t] = combine(part[t], part[t + span]);            \
  }                                                                      \
  barrier(CLK_LOCAL_MEM_FENCE);
#define PLUS(a, b) ((a) + (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

// Runs over this work item's elements k; `held` is what it keeps for each.
#if HELD
#define KEPT ACC held[(WIDTH + ITEMS - 1) / ITEMS];
#define HOLD(value) (held[j] = (value))
#define HOLDS(value) held[j]
#define OVER_ROW(body)                                                             \
  _Pragma("unroll") for (int j = 0; j < (WIDTH + ITEMS - 1) / ITEMS; ++j) {        \
    const int k = t + j * ITEMS;                                                   \
    if (k < WIDTH) { body }                                                        \
  }
#else
#define KEPT
#define HOLD(value) (value)
#define HOLDS(value) (value)
#define OVER_ROW(body) for (int k = t; k < WIDTH; k += ITEMS) { body }
#endif
#define EXP(k) HOLDS(exp(LOAD(x, row + k) - largest))

// Leaves in `largest` and part[0] the row's largest value and its sum of exponentials, which EXP has.
#define SUM_OF_ROW                                                       \
  KEPT                                                                   \
  ACC largest = -INFINITY;                                               \
  OVER_ROW(const ACC v = HOLD(LOAD(x, row + k)); largest = LARGER(v, largest);) \
  part[t] = largest;                                                     \
  REDUCE(LARGER)                                                         \
  largest = part[0];                                                     \
  barrier(CLK_LOCAL_MEM_FENCE);                                          \
  ACC sum = 0;                                                           \
  OVER_ROW(sum += HOLD(exp(HOLDS(LOAD(x, row + k)) - largest));)         \
  part[t] = sum;                                                         \
  REDUCE(PLUS)

#if VECTORS

#define LAST (WIDTH % 16)  // elements after the last whole vector of a row; a row's last vector holds them in its last lanes
#define IS_LAST ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) >= 16 - LAST)

kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void softmax(global const float *x, const long offset, global float *y) {
  for (long row = get_group_id(0) * (long)ROWS; row < (get_group_id(0) + 1) * (long)ROWS; ++row) {
    global const float *from = x + offset + row * WIDTH;
    global float *to = y + row * WIDTH;
    float largest = -INFINITY, sum = 0;
#if WIDTH >= 16
    float16 most = vload16(0, from + WIDTH - 16), sums = 0;
    for (int k = 0; k + 16 <= WIDTH; k += 16) most = fmax(most, vload16(0, from + k));
    const float8 most8 = fmax(most.lo, most.hi);
    const float4 most4 = fmax(most8.lo, most8.hi);
    largest = fmax(fmax(most4.x, most4.y), fmax(most4.z, most4.w));
    for (int k = 0; k < WIDTH; k += 16) {
      const int at = min(k, WIDTH - 16);  // the last vector ends with the row, and computes some elements again
      const float16 e = exp(vload16(0, from + at) - largest);
      sums += k == at ? e : select((float16)0, e, IS_LAST);
      vstore16(e, 0, to + at);
    }
    const float8 sum8 = sums.lo + sums.hi;
    const float4 sum4 = sum8.lo + sum8.hi;
    sum = (sum4.x + sum4.y) + (sum4.z + sum4.w);
    const float16 last = vload16(0, to + WIDTH - 16) / sum;
    for (int k = 0; k + 16 <= WIDTH; k += 16) vstore16(vload16(0, to + k) / sum, 0, to + k);
    if (LAST) vstore16(last, 0, to + WIDTH - 16);
#else
    for (int k = 0; k < WIDTH; ++k) largest = fmax(largest, from[k]);
    for (int k = 0; k < WIDTH; ++k) sum += to[k] = exp(from[k] - largest);
    for (int k = 0; k < WIDTH; ++k) to[k] /= sum;
#endif
  }
}

#else

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax(global const REAL *x, const long offset, global REAL *y) {
  local ACC part[ITEMS];
  const int t = get_local_id(0);
  const long row = get_group_id(0) * (long)WIDTH;
  x += offset;
  SUM_OF_ROW
  OVER_ROW(STORE(y, row + k, EXP(k) / part[0]);)
}

#endif
