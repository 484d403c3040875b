// Batch norm while training, for GPUs, with channels first and float32: a work group is one channel of all images, so
// that it can sum, form the statistics and go over the channel once more in one launch. Where channels are few and
// large, SPLITS groups a channel sum first (the _sums kernels), and PARTS groups a channel do the rest; each then adds
// up the channel's few partial sums for itself.
//
// Forward   mean, variance of x; y = activation((x - mean) * factor + shift + residual), factor = scale * deviation,
//           deviation = 1 / sqrt(variance + epsilon); the running statistics move by momentum. Sums are of x - k and
//           its square, k the channel's first value, so that the difference of squares does not cancel.
// Backward  d = dy where the result is above 0; ds, dq = sums of d, d * (x - mean); dshift = ds;
//           dscale = dq * deviation; dx = factor * (d - ds / n - (x - mean) * dscale * deviation / n)
//
// Values the host defines:
//   MB CHANNELS PIXELS   sizes of x
//   WIDE          4 if PIXELS is a multiple of 4 and every tensor begins at one of 16 bytes, else 1
//   GROUP         work items of a group, a power of two
//   SPLITS PARTS  groups that sum a channel, 0 for none; groups that do the rest, 1 unless SPLITS
//   RELU RESIDUAL 1 for the activation; for the residual (with both, the result says where the slope is 0)
//   KEEP          1 if d is stored: it is the residual's gradient
// stats holds mean, deviation and factor of each channel; partial the sums, channel by channel. `places` of a tensor
// are pieces of WIDE elements.

#if WIDE == 4
#define FEW float4
#define TOTAL(v) (((v).s0 + (v).s1) + ((v).s2 + (v).s3))
#else
#define FEW float
#define TOTAL(v) (v)
#endif
#define ROW (PIXELS / WIDE)
#define COUNT (MB * ROW)
#define SHARE(of) ((COUNT + (of) - 1) / (of))
#define IN(p, o) global const FEW *restrict p = (global const FEW *)(p##_memory + (o));
#define OUT(p) global FEW *restrict p = (global FEW *)p##_memory;
#define TENSOR(p) global const float *restrict p##_memory, const long p##_offset
#define VECTOR(p) global const float *p, const long p##_offset
#define STATISTIC(p) global float *p, const long p##_offset

// Runs over this item's places `at` of channel c among `of` equal shares.
#define OVER(share, of, body)                                                            \
  {                                                                                      \
    const uint last = min((uint)((share) + 1) * SHARE(of), (uint)COUNT);                 \
    _Pragma("unroll 4") for (uint i = (share) * SHARE(of) + t; i < last; i += GROUP) {   \
      const long at = (i / ROW * (long)CHANNELS + c) * ROW + i % ROW;                    \
      body                                                                               \
    }                                                                                    \
  }

// Adds up a[] and b[] of all items into a[0] and b[0].
#define REDUCE(va, vb)                                                                   \
  a[t] = (va), b[t] = (vb);                                                              \
  for (int span = GROUP / 2; span > 0; span /= 2) {                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    if (t < span) a[t] += a[t + span], b[t] += b[t + span];                              \
  }                                                                                      \
  barrier(CLK_LOCAL_MEM_FENCE);
// The same of what the _sums kernel left.
#define GATHER                                                                           \
  REDUCE(t < SPLITS ? partial[c * SPLITS + t] : 0, t < SPLITS ? partial[(CHANNELS + c) * SPLITS + t] : 0)
#define START(groups)                                                                    \
  local float a[GROUP], b[GROUP];                                                        \
  const int t = get_local_id(0), c = get_group_id(0) / (groups), part = get_group_id(0) % (groups);
#define ALL_ITEMS kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void

#if !BACKWARD

#define SUMS(share, of)                                                                  \
  const float k = x_memory[x_offset + c * PIXELS];                                       \
  FEW s = 0, q = 0;                                                                      \
  OVER(share, of, const FEW v = x[at] - k; s += v; q += v * v;)                          \
  REDUCE(TOTAL(s), TOTAL(q))

#if SPLITS
ALL_ITEMS batch_norm_sums(TENSOR(x), global float *partial) {
  START(SPLITS)
  IN(x, x_offset)
  SUMS(part, SPLITS)
  if (t == 0) partial[c * SPLITS + part] = a[0], partial[(CHANNELS + c) * SPLITS + part] = b[0];
}
#endif

ALL_ITEMS batch_norm(TENSOR(x), VECTOR(scale), VECTOR(shift), STATISTIC(running_mean), STATISTIC(running_variance),
                     const float momentum, const float epsilon,
#if SPLITS
                     global const float *partial,
#endif
#if RESIDUAL
                     TENSOR(residual),
#endif
                     global float *restrict stats, global float *restrict y_memory) {
  START(PARTS)
  IN(x, x_offset)
  OUT(y)
#if SPLITS
  const float k = x_memory[x_offset + c * PIXELS];
  GATHER
#else
  SUMS(0, 1)
#endif
  const float m = a[0] * (1.0f / (MB * PIXELS));
  const float variance = max(b[0] * (1.0f / (MB * PIXELS)) - m * m, 0.0f);
  const float deviation = rsqrt(variance + epsilon), mean = m + k, factor = scale[scale_offset + c] * deviation;
  const float by = shift[shift_offset + c];
  if (part == 0 && t == 0) {
    stats[c] = mean, stats[CHANNELS + c] = deviation, stats[2 * CHANNELS + c] = factor;
    running_mean += running_mean_offset + c, running_variance += running_variance_offset + c;
    *running_mean += momentum * (mean - *running_mean);
    *running_variance += momentum * (variance * ((float)(MB * PIXELS) / (MB * PIXELS - 1)) - *running_variance);
  }
#if RESIDUAL
  IN(residual, residual_offset)
#define PLUS + residual[at]
#else
#define PLUS
#endif
#if RELU
#define ACTIVATE(v) ((v) < 0 ? (FEW)0 : (v))
#else
#define ACTIVATE(v) (v)
#endif
  OVER(part, PARTS, const FEW v = (x[at] - mean) * factor + by PLUS; y[at] = ACTIVATE(v);)
}

#else

// d at one place, from what the first pass read.
#if RELU && RESIDUAL
#define SLOPED (y[at] > 0 ? dy[at] : (FEW)0)
#elif RELU
#define SLOPED ((x[at] - mean) * factor + by > 0 ? dy[at] : (FEW)0)
#else
#define SLOPED dy[at]
#endif
#if KEEP
#define STORE_D kept[at] = d;
#define AGAIN kept[at]
#else
#define STORE_D
#define AGAIN SLOPED
#endif
#define GIVEN                                                                            \
  TENSOR(dy), TENSOR(x), VECTOR(shift), global const float *stats, global const float *restrict y_memory,       \
  global float *restrict kept_memory
#define OPEN                                                                             \
  IN(dy, dy_offset)                                                                      \
  IN(x, x_offset)                                                                        \
  IN(y, 0)                                                                               \
  OUT(kept)                                                                              \
  const float mean = stats[c], deviation = stats[CHANNELS + c], factor = stats[2 * CHANNELS + c]; \
  const float by = shift[shift_offset + c];
#define SUMS(share, of)                                                                  \
  FEW ds = 0, dq = 0;                                                                    \
  OVER(share, of, const FEW d = SLOPED; STORE_D ds += d; dq += d * (x[at] - mean);)      \
  REDUCE(TOTAL(ds), TOTAL(dq))

#if SPLITS
ALL_ITEMS batch_norm_backward_sums(GIVEN, global float *partial) {
  START(SPLITS)
  OPEN
  SUMS(part, SPLITS)
  if (t == 0) partial[c * SPLITS + part] = a[0], partial[(CHANNELS + c) * SPLITS + part] = b[0];
}
#endif

ALL_ITEMS batch_norm_backward(GIVEN,
#if SPLITS
                              global const float *partial,
#endif
                              STATISTIC(dscale), STATISTIC(dshift), global float *restrict dx_memory) {
  START(PARTS)
  OPEN
  OUT(dx)
#if SPLITS
  GATHER
#else
  SUMS(0, 1)
#endif
  const float slope = b[0] * deviation;
  if (part == 0 && t == 0) dscale[dscale_offset + c] = slope, dshift[dshift_offset + c] = a[0];
  const float less = a[0] * (1.0f / (MB * PIXELS)), along = slope * deviation * (1.0f / (MB * PIXELS));
  OVER(part, PARTS, const FEW d = AGAIN; dx[at] = factor * (d - less - (x[at] - mean) * along);)
}

#endif
