// y[r, k] = activation((x[r, k] - mean_r) / sqrt(variance_r + EPSILON) * scale[c] + shift[c]) with the statistics of row
// r, the variance from the differences to the mean; c is the place of k's channel. One work group a row, or with VECTORS a few.
//
// Values the host defines:
//   WIDTH         elements of a row
//   EACH          neighbours of a row that share a channel: 1 where each has its own
//   GROUPS        rows after which the channels begin again
//   ITEMS         work items of a row, a power of two
//   VECTORS       1 where a CPU computes float32: one work item, 16 elements at a time
//   ROWS          with VECTORS, the rows of a work group
//   SCALED SHIFTED   whether there is a scale, a shift
//   EPSILON       what is added to the variance
//   ACTIVATION(T, v)   the activation of v, of type T
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)
// Offsets count elements to the first.

#define CHANNELS (WIDTH / EACH)
#if SCALED
#define TIMES(v, c) ((v) * LOAD(scale, first + (c)))
#else
#define TIMES(v, c) (v)
#endif
#if SHIFTED
#define PLUS(v, c) ((v) + LOAD(shift, first + (c)))
#else
#define PLUS(v, c) (v)
#endif
#define ARGUMENTS                                                    \
  global const REAL *x, const long x_offset, global const REAL *scale, const long scale_offset, \
  global const REAL *shift, const long shift_offset, global REAL *y
#define PLACE(number)                                                \
  const int first = (int)((number) % GROUPS) * CHANNELS;             \
  global const REAL *from = x + x_offset + (number) * (long)WIDTH;   \
  global REAL *to = y + (number) * (long)WIDTH;

#if VECTORS

static float sum_of(const float16 v) {
  const float8 a = v.lo + v.hi;
  const float4 b = a.lo + a.hi;
  return (b.x + b.y) + (b.z + b.w);
}

#define LAST (WIDTH % 16)  // elements after the last whole vector of a row; a row's last vector holds them in its last lanes
#define IS_LAST ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) >= 16 - LAST)
#define WHOLE (WIDTH >= 16)

kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void row_norm(ARGUMENTS) {
  scale += scale_offset, shift += shift_offset;
  for (long row = get_group_id(0) * (long)ROWS; row < (get_group_id(0) + 1) * (long)ROWS; ++row) {
    PLACE(row)
    float16 sums = 0, more = 0;
    float rest = 0;
    int k = 0;
    for (; k + 32 <= WIDTH; k += 32) sums += vload16(0, from + k), more += vload16(0, from + k + 16);
    if (k + 16 <= WIDTH) sums += vload16(0, from + k), k += 16;
#if WHOLE
    if (LAST) more += select((float16)0, vload16(0, from + WIDTH - 16), IS_LAST);
#else
    for (; k < WIDTH; ++k) rest += from[k];
#endif
    const float mean = (sum_of(sums + more) + rest) / WIDTH;
    sums = more = 0, rest = 0;
    for (k = 0; k + 32 <= WIDTH; k += 32) {
      const float16 one = vload16(0, from + k) - mean, other = vload16(0, from + k + 16) - mean;
      sums += one * one, more += other * other;
    }
    if (k + 16 <= WIDTH) {
      const float16 one = vload16(0, from + k) - mean;
      sums += one * one, k += 16;
    }
#if WHOLE
    if (LAST) {
      const float16 one = select((float16)0, vload16(0, from + WIDTH - 16) - mean, IS_LAST);
      more += one * one;
    }
#else
    for (; k < WIDTH; ++k) rest += (from[k] - mean) * (from[k] - mean);
#endif
    const float factor = rsqrt((sum_of(sums + more) + rest) / WIDTH + (float)EPSILON);
#if EACH == 1 && WHOLE
    for (k = 0; k < WIDTH; k += 16) {
      const int at = min(k, WIDTH - 16);  // the last vector ends with the row, and computes some elements again
      float16 v = (vload16(0, from + at) - mean) * factor;
#if SCALED
      v *= vload16(0, scale + first + at);
#endif
#if SHIFTED
      v += vload16(0, shift + first + at);
#endif
      vstore16(ACTIVATION(float16, v), 0, to + at);
    }
#elif EACH == 1
    for (k = 0; k < WIDTH; ++k) {
      const float v = PLUS(TIMES((from[k] - mean) * factor, k), k);
      to[k] = ACTIVATION(float, v);
    }
#else
    for (int c = 0; c < CHANNELS; ++c, from += EACH, to += EACH) {
      const float times = TIMES(factor, c), plus = PLUS(0.0f, c);
      for (k = 0; k + 16 <= EACH; k += 16) {
        const float16 v = (vload16(0, from + k) - mean) * times + plus;
        vstore16(ACTIVATION(float16, v), 0, to + k);
      }
      for (; k < EACH; ++k) {
        const float v = (from[k] - mean) * times + plus;
        to[k] = ACTIVATION(float, v);
      }
    }
#endif
  }
}

#else

#define REDUCE                                                       \
  for (int span = ITEMS / 2; span > 0; span /= 2) {                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                    \
    if (t < span) part[t] += part[t + span];                         \
  }                                                                  \
  barrier(CLK_LOCAL_MEM_FENCE);

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void row_norm(ARGUMENTS) {
  local ACC part[ITEMS];
  scale += scale_offset, shift += shift_offset;
  PLACE(get_group_id(0))
  const int t = get_local_id(0);
  ACC sum = 0;
  for (int k = t; k < WIDTH; k += ITEMS) sum += LOAD(from, k);
  part[t] = sum;
  REDUCE
  const ACC mean = part[0] / WIDTH;
  barrier(CLK_LOCAL_MEM_FENCE);  // before part is written again
  sum = 0;
  for (int k = t; k < WIDTH; k += ITEMS) {
    const ACC v = LOAD(from, k) - mean;
    sum += v * v;
  }
  part[t] = sum;
  REDUCE
  const ACC factor = rsqrt(part[0] / WIDTH + (ACC)EPSILON);
  for (int k = t; k < WIDTH; k += ITEMS) {
    const int c = k / EACH;
    const ACC v = PLUS(TIMES((LOAD(from, k) - mean) * factor, c), c);
    STORE(to, k, ACTIVATION(ACC, v));
  }
}

#endif
