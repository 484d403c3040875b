// y[r, k] = exp(x[r, k] - m_r) / sum over j of exp(x[r, j] - m_r), m_r the largest of row r: one work group a row.
//
// Values the host defines:
//   WIDTH         elements of a row
//   ITEMS         work items of a row, a power of two
//   VECTORS       1 where a CPU computes float32: one work item a group, 16 elements of a row at a time
//   ROWS          with VECTORS, the rows of a work group
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)
// Offsets count elements to the first. Work item t of a row takes the elements t, t + ITEMS, ...

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
  ACC largest = -INFINITY, sum = 0;
  for (int k = t; k < WIDTH; k += ITEMS) {
    const ACC v = LOAD(x, row + k);
    largest = LARGER(v, largest);
  }
  part[t] = largest;
  REDUCE(LARGER)
  largest = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = t; k < WIDTH; k += ITEMS) sum += exp(LOAD(x, row + k) - largest);
  part[t] = sum;
  REDUCE(PLUS)
  for (int k = t; k < WIDTH; k += ITEMS) STORE(y, row + k, exp(LOAD(x, row + k) - largest) / part[0]);
}

#endif
