// y[r, k] = exp(x[r, k] - m_r) / sum over j of exp(x[r, j] - m_r), m_r the largest of row r: one work group a row.
// losses[r] = m_r + log(sum over j of exp(x[r, j] - m_r)) - x[r, labels[r]]; slopes[r, k] is its derivative by x[r, k].
//
// Values the host defines:
//   WIDTH         elements of a row
//   ITEMS         work items of a group, a power of two
//   SLOPE         1 to store the cross-entropy's slopes
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)
// Offsets count elements to the first. Work item t takes the elements t, t + ITEMS, ... of its row.

#define REDUCE(combine)                                                  \
  for (int span = ITEMS / 2; span > 0; span /= 2) {                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                        \
    if (t < span) part[t] = combine(part[t], part[t + span]);            \
  }                                                                      \
  barrier(CLK_LOCAL_MEM_FENCE);
#define PLUS(a, b) ((a) + (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

// Leaves in `largest` and part[0] the row's largest value and its sum of exponentials.
#define SUM_OF_ROW                                                       \
  local ACC part[ITEMS];                                                 \
  const int t = get_local_id(0);                                         \
  const long row = get_group_id(0) * (long)WIDTH;                        \
  x += offset;                                                           \
  ACC largest = -INFINITY;                                               \
  for (int k = t; k < WIDTH; k += ITEMS) largest = LARGER(LOAD(x, row + k), largest); \
  part[t] = largest;                                                     \
  REDUCE(LARGER)                                                         \
  largest = part[0];                                                     \
  barrier(CLK_LOCAL_MEM_FENCE);                                          \
  ACC sum = 0;                                                           \
  for (int k = t; k < WIDTH; k += ITEMS) sum += exp(LOAD(x, row + k) - largest); \
  part[t] = sum;                                                         \
  REDUCE(PLUS)

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax(global const REAL *x, const long offset, global REAL *y) {
  SUM_OF_ROW
  for (int k = t; k < WIDTH; k += ITEMS) STORE(y, row + k, exp(LOAD(x, row + k) - largest) / part[0]);
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void cross_entropy(global const REAL *x, const long offset, global const int *labels, const long labels_offset,
                   global REAL *losses
#if SLOPE
                   , global REAL *slopes
#endif
) {
  SUM_OF_ROW
  const int label = labels[labels_offset + get_group_id(0)];
  const int known = label >= 0 && label < WIDTH;
  if (t == 0) STORE(losses, get_group_id(0), known ? largest + log(part[0]) - LOAD(x, row + (known ? label : 0)) : (ACC)NAN);
#if SLOPE
  for (int k = t; k < WIDTH; k += ITEMS)
    STORE(slopes, row + k, known ? exp(LOAD(x, row + k) - largest) / part[0] - (ACC)(k == label) : (ACC)NAN);
#endif
}
