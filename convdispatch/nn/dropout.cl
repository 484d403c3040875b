// y[i] = u_i >= p ? x[i] * scale : 0, u_i the i-th uniform number from counter `first` on: one work item four elements.
//
// n      elements
// p      probability of 0; scale = 1 / (1 - p)
// REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes); unit and block_of come from random.cl

kernel void dropout(global const REAL *x, const long offset, global REAL *y, const long n, const ulong seed,
                    const ulong first, const float p, const float scale) {
  const long b = get_global_id(0);
  if (b * 4 >= n) return;
  x += offset;
  const float4 u = unit(block_of(seed, first + b));
  const float draws[4] = {u.s0, u.s1, u.s2, u.s3};
  for (int j = 0; j < 4; ++j)
    if (b * 4 + j < n) {
      const ACC v = LOAD(x, b * 4 + j) * (ACC)scale;
      STORE(y, b * 4 + j, draws[j] >= p ? v : (ACC)0);
    }
}
