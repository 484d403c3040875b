// y[n, c] = mean over the area p of x[n, c, p]: global average pooling, one work item a mean.
//
// Values the host defines:
//   CHANNELS      c
//   AREA          pixels of one channel
//   NHWC          1 if x is [n, p, c], 0 if it is [n, c, p]
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)
// offset counts elements to the first of x. Sums run over eight partial sums, which keeps the rounding error small and
// lets the additions overlap.

#define LANES 8
#if NHWC
#define AT(i, p) ((i) / CHANNELS * AREA * CHANNELS + (p) * CHANNELS + (i) % CHANNELS)
#else
#define AT(i, p) ((i) * AREA + (p))
#endif

kernel void average(global const REAL *x, const long offset, global REAL *y) {
  const long i = get_global_id(0);
  x += offset;
  ACC sum[LANES] = {0};
  for (int p = 0; p + LANES <= AREA; p += LANES)
    for (int lane = 0; lane < LANES; ++lane) sum[lane] += LOAD(x, AT(i, p + lane));
  for (int p = AREA / LANES * LANES; p < AREA; ++p) sum[p % LANES] += LOAD(x, AT(i, p));
  for (int span = LANES / 2; span > 0; span /= 2)
    for (int lane = 0; lane < span; ++lane) sum[lane] += sum[lane + span];
  STORE(y, i, sum[0] / (ACC)AREA);
}
