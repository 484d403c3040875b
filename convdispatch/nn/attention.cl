// y[b, q, h, e] = sum over k of p[q, k] * v[k, e] / sum over k of p[q, k] for each head h of each batch b, where
// p[q, k] = exp(s[q, k] - m_q), m_q the largest of row q of s[q, k] = scale * (sum over d of q[q, d] * k[k, d]) +
// mask[q, k]. Rows whose scores are all -inf are zeros. Scores of TILE keys at a time are there, and what was summed
// before is rescaled when a larger one comes (Rabe and Staats 2021, Dao et al. 2022). A work item has a block of
// NV * LANES queries, each in a lane of its own: so nothing is summed across lanes, and k and v are read as they lie.
//
// Values the host defines:
//   LANES NV       queries of a vector, vectors of queries of a block
//   ROWS           keys, or elements of a value, of a register tile
//   TILE           keys of a tile of scores, a multiple of ROWS
//   SIZE VALUES    elements of a query and of a key; of a value
//   DENSE          1 where elements of a key, and those of a value, are neighbours
//   MASKED         1 where a mask is added
//   CAUSAL         1 where a query sees no key after its own place
// X_batch, X_head, X_row, X_one for X of q, k, v, m: elements from one to the next. Of a mask a row is a query's.

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef JOIN(float, LANES) lanes __attribute__((aligned(4)));
typedef JOIN(int, LANES) ints;
#define TO_INTS JOIN(convert_int, LANES)
#define TO_LANES JOIN(convert_float, LANES)
#define AS_LANES JOIN(as_float, LANES)
#define BLOCK (NV * LANES)
#define AT(memory, row, vector) (((local lanes *)(memory))[(row) * NV + (vector)])
#define UNROLL _Pragma("unroll")
#if VALUES % ROWS
#define ELEMENT(r) min(r, VALUES - 1 - e)
#else
#define ELEMENT(r) (r)
#endif

// exp(x) of x <= 0, to two units in the last place; 0 below -87.
static lanes exponential(const lanes x) {
  const lanes n = rint(x * 1.44269504f);
  const lanes r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  lanes p = r * 1.98756915e-4f + 1.39819995e-3f;
  p = p * r + 8.33345191e-3f;
  p = p * r + 4.16657959e-2f;
  p = p * r + 1.66666655e-1f;
  p = p * r + 5.00000000e-1f;
  p = p * r * r + r + 1.0f;
  const lanes power = AS_LANES((TO_INTS(n) + 127) << 23);
  return x < -87.0f ? (lanes)(0.0f) : p * power;
}

#if DENSE
#define K_ONE 1
#define V_ONE 1
#else
#define K_ONE k_one
#define V_ONE v_one
#endif

#if MASKED
// The mask of one key and the queries of a vector, of which the first `there` are.
static lanes mask_of(global const float *mask, const long m_row, const int there) {
  if (m_row == 0) return (lanes)(mask[0]);
  if (m_row == 1 && there >= LANES) return *(global const lanes *)mask;
  float own[LANES] __attribute__((aligned(64)));
  for (int t = 0; t < LANES; ++t) own[t] = t < there ? mask[t * m_row] : 0.0f;
  return *(lanes *)own;
}
#endif

#define STRIDES(x) const long x##_batch, const long x##_head, const long x##_row, const long x##_one
kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void attention(global const float *q, const long q_offset, global const float *k, const long k_offset,
               global const float *v, const long v_offset, global const float *mask, const long mask_offset,
               global float *y, const int heads, const int queries, const int keys, const float scale,
               STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(m)) {
  local float turned[SIZE * BLOCK] __attribute__((aligned(64)));
  local float scores[TILE * BLOCK] __attribute__((aligned(64)));
  local float sums[VALUES * BLOCK] __attribute__((aligned(64)));
  const int blocks = (queries + BLOCK - 1) / BLOCK;
  const int first = get_group_id(0) % blocks * BLOCK;
  const int plane = get_group_id(0) / blocks, batch = plane / heads, head = plane % heads;
  q += q_offset + batch * q_batch + head * q_head + first * q_row;
  k += k_offset + batch * k_batch + head * k_head;
  v += v_offset + batch * v_batch + head * v_head;
  y += ((batch * (long)queries + first) * heads + head) * VALUES;
  const int there = min(BLOCK, queries - first);
#if MASKED
  mask += mask_offset + batch * m_batch + head * m_head + first * m_row;
#endif
  for (int d = 0; d < SIZE; ++d)
    for (int t = 0; t < BLOCK; ++t) turned[d * BLOCK + t] = t < there ? q[t * q_row + d * q_one] * scale : 0.0f;
  for (int e = 0; e < VALUES; ++e) UNROLL for (int j = 0; j < NV; ++j) AT(sums, e, j) = 0.0f;
  lanes most[NV], total[NV];
  UNROLL for (int j = 0; j < NV; ++j) most[j] = -INFINITY, total[j] = 0.0f;
#if CAUSAL
  float places[BLOCK] __attribute__((aligned(64)));
  for (int t = 0; t < BLOCK; ++t) places[t] = first + t;
  const int seen = min(keys, first + BLOCK);
#else
  const int seen = keys;
#endif
  for (int begin = 0; begin < seen; begin += TILE) {
    const int count = min(TILE, seen - begin);
    for (int i = 0; i < count; i += ROWS) {
      lanes s[ROWS][NV];
      global const float *row[ROWS];
      UNROLL for (int r = 0; r < ROWS; ++r) {
        row[r] = k + min(begin + i + r, keys - 1) * k_row;
        UNROLL for (int j = 0; j < NV; ++j) s[r][j] = 0.0f;
      }
      for (int d = 0; d < SIZE; ++d) {
        lanes one[NV];
        UNROLL for (int j = 0; j < NV; ++j) one[j] = AT(turned, d, j);
        UNROLL for (int r = 0; r < ROWS; ++r) {
          const float other = row[r][d * K_ONE];
          UNROLL for (int j = 0; j < NV; ++j) s[r][j] += one[j] * other;
        }
      }
      UNROLL for (int r = 0; r < ROWS; ++r) UNROLL for (int j = 0; j < NV; ++j) AT(scores, i + r, j) = s[r][j];
    }
    lanes larger[NV], change[NV];
    UNROLL for (int j = 0; j < NV; ++j) larger[j] = most[j];
    for (int i = 0; i < count; ++i) {
      UNROLL for (int j = 0; j < NV; ++j) {
        lanes s = AT(scores, i, j);
#if MASKED
        s += mask_of(mask + (begin + i) * m_one + j * LANES * m_row, m_row, there - j * LANES);
#endif
#if CAUSAL
        s = ((lanes *)places)[j] < (float)(begin + i) ? (lanes)(-INFINITY) : s;
#endif
#if MASKED || CAUSAL
        AT(scores, i, j) = s;
#endif
        larger[j] = s > larger[j] ? s : larger[j];
      }
    }
    UNROLL for (int j = 0; j < NV; ++j) {
      const lanes least = larger[j] == -INFINITY ? (lanes)(0.0f) : larger[j];
      change[j] = exponential(most[j] - least);
      most[j] = larger[j];
      lanes here = 0.0f;  // a tile's sum by itself: of thousands one after the other the last digits are lost
      for (int i = 0; i < count; ++i) {
        const lanes p = exponential(AT(scores, i, j) - least);
        here += p;
        AT(scores, i, j) = p;
      }
      total[j] = total[j] * change[j] + here;
    }
    for (int e = 0; e < VALUES; e += ROWS) {
      lanes s[ROWS][NV];
      UNROLL for (int r = 0; r < ROWS; ++r) UNROLL for (int j = 0; j < NV; ++j) s[r][j] = 0.0f;
      global const float *row = v + begin * v_row + e * V_ONE;
      for (int i = 0; i < count; ++i, row += v_row) {
        lanes one[NV];
        UNROLL for (int j = 0; j < NV; ++j) one[j] = AT(scores, i, j);
        UNROLL for (int r = 0; r < ROWS; ++r) {
          const float other = row[ELEMENT(r) * V_ONE];
          UNROLL for (int j = 0; j < NV; ++j) s[r][j] += one[j] * other;
        }
      }
      UNROLL for (int r = 0; r < ROWS; ++r) if (ELEMENT(r) == r)
        UNROLL for (int j = 0; j < NV; ++j) AT(sums, e + r, j) = AT(sums, e + r, j) * change[j] + s[r][j];
    }
  }
  UNROLL for (int j = 0; j < NV; ++j) total[j] = total[j] == 0.0f ? (lanes)(0.0f) : 1.0f / total[j];
  for (int e = 0; e < VALUES; ++e) UNROLL for (int j = 0; j < NV; ++j) AT(sums, e, j) *= total[j];
  for (int t = 0; t < there; ++t)
    for (int e = 0; e < VALUES; ++e) y[t * (long)heads * VALUES + e] = sums[e * BLOCK + t];
}
