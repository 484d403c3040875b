// y[c] = x[c] * d[c]^-BETA,  d[c] = BIAS + SCALE * sum of x[j]^2 over the SIZE channels from c - SIZE / 2.
// dx[c] = dy[c] * d[c]^-BETA - 2 * SCALE * BETA * x[c] * sum of dy[j] * x[j] * d[j]^(-BETA - 1) over the j whose window
// holds c. One work item an element; what neighbours read again comes from the cache.
//
// Values the host defines:
//   TOTAL         elements
//   CHANNELS      c
//   INNER         elements between two channels
//   SIZE SCALE BETA BIAS
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)

inline ACC window(global const REAL *x, long i, int c) {
  ACC sum = 0;
  for (int j = max(0, c - SIZE / 2); j < min(CHANNELS, c - SIZE / 2 + SIZE); ++j) {
    const ACC v = LOAD(x, i + (long)(j - c) * INNER);
    sum += v * v;
  }
  return BIAS + SCALE * sum;
}

kernel void lrn(global const REAL *x, const long offset, global REAL *y) {
  const long i = get_global_id(0);
  if (i >= TOTAL) return;
  x += offset;
  STORE(y, i, LOAD(x, i) * pow(window(x, i, (int)(i / INNER % CHANNELS)), -BETA));
}

kernel void lrn_backward(global const REAL *x, const long offset, global const REAL *dy, const long dy_offset,
                         global REAL *dx) {
  const long i = get_global_id(0);
  if (i >= TOTAL) return;
  const int c = (int)(i / INNER % CHANNELS);
  x += offset;
  dy += dy_offset;
  ACC sum = 0;
  const int first = c - SIZE + 1 + SIZE / 2;
  for (int j = max(0, first); j < min(CHANNELS, first + SIZE); ++j) {
    const long at = i + (long)(j - c) * INNER;
    sum += LOAD(dy, at) * LOAD(x, at) * pow(window(x, at, j), -BETA - (ACC)1);
  }
  STORE(dx, i, LOAD(dy, i) * pow(window(x, i, c), -BETA) - 2 * SCALE * BETA * LOAD(x, i) * sum);
}
