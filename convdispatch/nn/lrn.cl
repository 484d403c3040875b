// y[c] = x[c] * d[c]^-BETA,  d[c] = BIAS + SCALE * sum of x[j]^2 over the SIZE channels from c - SIZE / 2.
// dx[c] = dy[c] * d[c]^-BETA - 2 * SCALE * BETA * x[c] * sum of dy[j] * x[j] * d[j]^(-BETA - 1) over the j whose window
// holds c. One work item an element; what neighbours read again comes from the cache.
//
// Values the host defines:
//   CHANNELS      c
//   INNER         elements between two channels
//   SIZE SCALE BETA BIAS
//   ROOTS         3 if BETA is 3/4, 2 if it is 1/2, else 0
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)

// d^-BETA; roots where they do, for a power costs ten times as much.
#if ROOTS == 3
#define POWER(d) rsqrt((d) * sqrt(d))
#elif ROOTS == 2
#define POWER(d) rsqrt(d)
#else
#define POWER(d) pow(d, -BETA)
#endif

// This work item's channel c and element i; neighbours in memory are neighbours along dimension 0.
#if INNER == 1
#define PLACE                            \
  const int c = get_global_id(0);        \
  const long i = get_global_id(1) * (long)CHANNELS + c;
#else
#define PLACE                            \
  const int c = get_global_id(1);        \
  const long i = (get_global_id(2) * (long)CHANNELS + c) * INNER + get_global_id(0);
#endif

// d of channel c, whose element is i. Channels outside are read as the nearest one and do not count.
inline ACC window(global const REAL *x, const long i, const int c) {
  ACC sum = 0;
#pragma unroll
  for (int n = 0; n < SIZE; ++n) {
    const int j = c - SIZE / 2 + n;
    const ACC v = LOAD(x, i + (long)(clamp(j, 0, CHANNELS - 1) - c) * INNER);
    sum += j >= 0 && j < CHANNELS ? v * v : (ACC)0;
  }
  return BIAS + SCALE * sum;
}

kernel void lrn(global const REAL *x, const long offset, global REAL *y) {
  PLACE
  x += offset;
  STORE(y, i, LOAD(x, i) * POWER(window(x, i, c)));
}

kernel void lrn_backward(global const REAL *x, const long offset, global const REAL *dy, const long dy_offset,
                         global REAL *dx) {
  PLACE
  x += offset;
  dy += dy_offset;
  ACC sum = 0;
#pragma unroll
  for (int n = 0; n < SIZE; ++n) {
    const int j = c - SIZE + 1 + SIZE / 2 + n, near = clamp(j, 0, CHANNELS - 1);
    const long at = i + (long)(near - c) * INNER;
    const ACC d = window(x, at, near), term = LOAD(dy, at) * LOAD(x, at) * POWER(d) / d;
    sum += j >= 0 && j < CHANNELS ? term : (ACC)0;
  }
  STORE(dx, i, LOAD(dy, i) * POWER(window(x, i, c)) - 2 * SCALE * BETA * LOAD(x, i) * sum);
}
