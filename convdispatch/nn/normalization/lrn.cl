// y[c] = x[c] * d[c]^-BETA,  d[c] = BIAS + SCALE * sum of x[j]^2 over the SIZE channels from c - SIZE / 2.
// dx[c] = dy[c] * d[c]^-BETA - 2 * SCALE * BETA * x[c] * sum of dy[j] * x[j] * d[j]^(-BETA - 1) over the j whose window
// holds c. One work item takes RUN channels of a pixel: each d and its powers are computed once for all who need them,
// but at a run's ends.
//
// Values the host defines:
//   CHANNELS PIXELS   c; pixels of all images
//   INNER         elements between two channels
//   SIZE SCALE BETA BIAS
//   ROOTS         3 if BETA is 3/4, 2 if it is 1/2, else 0
//   RUN           channels of a work item
//   FLAT          1 to count work items in one dimension (GPUs); INDEX, uint or ulong, holds any element's number
//   LANES         16 where a CPU computes float32: vectors of pixels, or with channels last of channels; else 1
//   EACH_PIXELS   pixels of a work item of lrn_rows
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)

// d^-BETA; roots where they do, for a power costs ten times as much.
#if ROOTS == 3
#define POWER(d) rsqrt((d) * sqrt(d))
#elif ROOTS == 2
#define POWER(d) rsqrt(d)
#else
#define POWER(d) pow(d, -BETA)
#endif

#define RUNS ((CHANNELS + RUN - 1) / RUN)
// This work item's first channel and its element; neighbours in memory are neighbours along dimension 0.
#if FLAT
#define HERE                                                  \
  const INDEX item = get_global_id(0);                        \
  if (item >= (INDEX)RUNS * PIXELS) return;
#endif
#if INNER == 1 && FLAT
#define PLACE HERE const int run = item % RUNS; const long pixel = item / RUNS;
#elif INNER == 1
#define PLACE const int run = get_global_id(0); const long pixel = get_global_id(1);
#elif FLAT
#define PLACE                                                 \
  HERE                                                        \
  const int inner = item % INNER, run = item / INNER % RUNS;  \
  const long image = item / INNER / RUNS;
#else
// The last vector of a row begins early enough to end with it: what two write is the same.
#define PLACE                                                 \
  const int inner = min((int)get_global_id(0) * LANES, INNER - LANES), run = get_global_id(1); \
  const long image = get_global_id(2);
#endif
#if INNER == 1
#define FIRST (pixel * CHANNELS + c)
#else
#define FIRST ((image * CHANNELS + c) * INNER + inner)
#endif
#define WITHIN(c) ((c) >= 0 && (c) < CHANNELS)

// Values along channels, from the run's first on: V at once, in arrays of ITEM, STEP apart.
#if LANES == 1
#define V ACC
#define ITEM ACC
#define STEP 1
#define GROUP
#else
#define V float16
#define GROUP __attribute__((reqd_work_group_size(1, 1, 1)))
#if INNER == 1
#define ITEM float
#define STEP LANES
#else
#define ITEM float16
#define STEP 1
#endif
#endif
#define ROOM(count) ((count + STEP - 1) / STEP * STEP + STEP)
#define EACH(n, count) _Pragma("unroll") for (int n = 0; n < (count); n += STEP)
#if STEP == 1
#define AT(array, n) (array)[n]
#define PUT(array, n, v) (array)[n] = (v)
#else
#define AT(array, n) vload16(0, (array) + (n))
#define PUT(array, n, v) vstore16(v, 0, (array) + (n))
#endif

// The values of channel c + j on of what p points to for channel c; 0 outside.
inline V take(global const REAL *p, const int c, const int j) {
#if LANES == 1
  const ACC v = LOAD(p, (long)(clamp(c + j, 0, CHANNELS - 1) - c) * INNER);
  return WITHIN(c + j) ? v : (ACC)0;
#elif INNER != 1
  return WITHIN(c + j) ? vload16(0, p + (long)j * INNER) : (float16)0;
#else
  if (c + j >= 0 && c + j + LANES <= CHANNELS) return vload16(0, p + j);
  float part[LANES];
  for (int l = 0; l < LANES; ++l) {
    const float v = p[clamp(c + j + l, 0, CHANNELS - 1) - c];
    part[l] = WITHIN(c + j + l) ? v : 0.0f;
  }
  return vload16(0, part);
#endif
}

inline void give(global REAL *p, const int c, const int j, const V v) {
#if LANES == 1
  if (c + j < CHANNELS) STORE(p, (long)j * INNER, v);
#elif INNER != 1
  if (c + j < CHANNELS) vstore16(v, 0, p + (long)j * INNER);
#else
  if (c + j + LANES <= CHANNELS) {
    vstore16(v, 0, p + j);
    return;
  }
  float part[LANES];
  vstore16(v, 0, part);
  for (int l = 0; c + j + l < CHANNELS; ++l) p[j + l] = part[l];
#endif
}

// d of the window that begins at value n of `xs`.
inline V window(const ITEM *xs, const int n) {
  V sum = 0;
  _Pragma("unroll") for (int j = 0; j < SIZE; ++j) {
    const V v = AT(xs, n + j);
    sum += v * v;
  }
  return BIAS + SCALE * sum;
}

kernel GROUP void lrn(global const REAL *restrict x, const long offset, global REAL *restrict y) {
  PLACE
  const int c = run * RUN;
  x += offset + FIRST;
  y += FIRST;
  ITEM xs[ROOM(RUN + SIZE - 1)];  // from channel c - SIZE / 2 on
  EACH(n, RUN + SIZE - 1) PUT(xs, n, take(x, c, n - SIZE / 2));
  EACH(n, RUN) give(y, c, n, AT(xs, n + SIZE / 2) * POWER(window(xs, n)));
}

#if LANES > 1 && INNER == 1 && CHANNELS % LANES == 0 && SIZE / 2 <= LANES
// Channels last, whole vectors of them: a work item takes rows of channels, each squared once between margins of zeros.
kernel GROUP void lrn_rows(global const REAL *restrict x, const long offset, global REAL *restrict y) {
  const long first = get_global_id(0) * (long)EACH_PIXELS;
  const int count = min((long)EACH_PIXELS, PIXELS - first);
  x += offset + first * CHANNELS;
  y += first * CHANNELS;
  float squares[CHANNELS + 2 * LANES];
  vstore16((V)0, 0, squares);
  vstore16((V)0, 0, squares + LANES + CHANNELS);
  for (int p = 0; p < count; ++p, x += CHANNELS, y += CHANNELS) {
    for (int c = 0; c < CHANNELS; c += LANES) {
      const V v = vload16(0, x + c);
      vstore16(v * v, 0, squares + LANES + c);
    }
    for (int c = 0; c < CHANNELS; c += LANES) {
      V sum = 0;
      _Pragma("unroll") for (int j = 0; j < SIZE; ++j) sum += vload16(0, squares + LANES + c - SIZE / 2 + j);
      vstore16(vload16(0, x + c) * POWER(BIAS + SCALE * sum), 0, y + c);
    }
  }
}
#endif

// A window that holds c belongs to one of the SIZE channels from c - BEFORE on.
#define BEFORE (SIZE - 1 - SIZE / 2)

kernel GROUP void lrn_backward(global const REAL *restrict x, const long offset, global const REAL *restrict dy,
                               const long dy_offset, global REAL *restrict dx) {
  PLACE
  const int c = run * RUN;
  x += offset + FIRST;
  dy += dy_offset + FIRST;
  dx += FIRST;
  ITEM xs[ROOM(RUN + SIZE - 1) + ROOM(SIZE - 1)];                       // from channel c - (SIZE - 1) on
  ITEM terms[ROOM(RUN + SIZE - 1)], scaled[ROOM(RUN + SIZE - 1)];       // from channel c - BEFORE on
  EACH(n, RUN + 2 * (SIZE - 1)) PUT(xs, n, take(x, c, n - (SIZE - 1)));
  EACH(n, RUN + SIZE - 1) {
    const V d = window(xs, n), slope = take(dy, c, n - BEFORE) * POWER(d);
    PUT(scaled, n, slope);
    PUT(terms, n, slope * AT(xs, n + SIZE / 2) / d);
  }
  EACH(n, RUN) {
    V sum = 0;
    _Pragma("unroll") for (int j = 0; j < SIZE; ++j) sum += AT(terms, n + j);
    give(dx, c, n, AT(scaled, n + BEFORE) - 2 * SCALE * BETA * AT(xs, n + SIZE - 1) * sum);
  }
}
