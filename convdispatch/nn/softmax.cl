// y[r, k] = exp(x[r, k] - m_r) / sum over j of exp(x[r, j] - m_r), m_r the largest of row r: one work group a row.
// losses[r] = m_r + log(sum over j of exp(x[r, j] - m_r)) - x[r, labels[r]]; slopes[r, k] is its derivative by
// x[r, k], times slope_scale.
//
// Values the host defines:
//   WIDTH         elements of a row
//   ITEMS         work items of a row, a power of two
//   SLOPE         1 to store the cross-entropy's slopes
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

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax(global const REAL *x, const long offset, global REAL *y) {
  local ACC part[ITEMS];
  const int t = get_local_id(0);
  const long row = get_group_id(0) * (long)WIDTH;
  x += offset;
  SUM_OF_ROW
  OVER_ROW(STORE(y, row + k, EXP(k) / part[0]);)
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void cross_entropy(const ACC slope_scale, global const REAL *x, const long offset,
                   global const int *labels, const long labels_offset, global REAL *losses
#if SLOPE
                   , global REAL *slopes
#endif
) {
  local ACC part[ITEMS];
  const int t = get_local_id(0);
  const long row = get_group_id(0) * (long)WIDTH;
  x += offset;
  SUM_OF_ROW
  const int label = labels[labels_offset + get_group_id(0)];
  const int known = label >= 0 && label < WIDTH;
  const ACC loss = known ? largest + log(part[0]) - LOAD(x, row + (known ? label : 0)) : (ACC)NAN;
  if (t == 0) STORE(losses, get_group_id(0), loss);
#if SLOPE
  OVER_ROW(const ACC slope = known ? EXP(k) / part[0] - (ACC)(k == label) : (ACC)NAN;
           STORE(slopes, row + k, slope * slope_scale);)
#endif
}
