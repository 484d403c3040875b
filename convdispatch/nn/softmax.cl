// y[r, k] = exp(x[r, k] - m_r) / sum over j of exp(x[r, j] - m_r), m_r the largest of row r: one work group a row.
//
// Values the host defines:
//   WIDTH         elements of a row
//   ITEMS         work items of a group, a power of two
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)
// offset counts elements to the first of x. Work item t takes the elements t, t + ITEMS, ... of its row.

#define REDUCE(combine)                                                  \
  for (int span = ITEMS / 2; span > 0; span /= 2) {                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                        \
    if (t < span) part[t] = combine(part[t], part[t + span]);            \
  }                                                                      \
  barrier(CLK_LOCAL_MEM_FENCE);
#define PLUS(a, b) ((a) + (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax(global const REAL *x, const long offset, global REAL *y) {
  local ACC part[ITEMS];
  const int t = get_local_id(0);
  const long row = get_group_id(0) * (long)WIDTH;
  x += offset;
  ACC largest = -INFINITY;
  for (int k = t; k < WIDTH; k += ITEMS) largest = LARGER(LOAD(x, row + k), largest);
  part[t] = largest;
  REDUCE(LARGER)
  largest = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  ACC sum = 0;
  for (int k = t; k < WIDTH; k += ITEMS) sum += exp(LOAD(x, row + k) - largest);
  part[t] = sum;
  REDUCE(PLUS)
  for (int k = t; k < WIDTH; k += ITEMS) STORE(y, row + k, exp(LOAD(x, row + k) - largest) / part[0]);
}
