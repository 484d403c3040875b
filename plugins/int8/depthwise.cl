// y[image, o, c] = epilogue(sum over taps t of (x[image, o S + t D - P, c] - x_zero) w[c, t]): depthwise, NHWC.
//
// A vector is sixteen channels in float32, where sums of up to 514 products of bytes are whole numbers. The last vector
// begins sixteen channels before the end. What x_zero takes from a sum is the same everywhere, since padding is x_zero.
// the problem's letters; COLUMNS  pixels of a row that are summed together; BLOCKS vectors; ROWS rows of y of a work item
#define UNROLL __attribute__((opencl_unroll_hint))
#define BLOCK(b) min(16 * (b), OC - 16)
#define LOADX(p) convert_float16(vload16(0, p))

// Of one row of taps, over COLUMNS pixels from column ``begin`` of x on; whole: all columns are x's.
inline void add_row(float16 *sums, global const REAL *row, global const float *w, int begin, float16 zero, const bool whole) {
  float16 k[KW];
  UNROLL for (int j = 0; j < KW; ++j) k[j] = vload16(j, w);
  UNROLL for (int t = 0; t < (COLUMNS - 1) * SW + (KW - 1) * DW + 1; ++t) {
    const int at = begin + t;
    float16 v = zero;
    if (whole || (at >= 0 && at < IW)) v = LOADX(row + (long)at * IC);
    UNROLL for (int j = 0; j < KW; ++j)
      if (t >= j * DW && (t - j * DW) % SW == 0 && (t - j * DW) / SW < COLUMNS)
        sums[(t - j * DW) / SW] = fma(v, k[j], sums[(t - j * DW) / SW]);
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const float *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS) {
  const int image = get_global_id(1), first = get_global_id(0) * ROWS;
  const float16 zero = (float)X_ZERO(table);
  w = (global const float *)((global const uchar *)w + w_at);
  x += (long)image * (ID * IH * IW) * IC;
  ONCE for (int row = first; row < min(first + ROWS, OD * OH); ++row) {
    const int od = row / OH, oh = row % OH;
    ONCE for (int b = 0; b < BLOCKS; ++b) {
      const int c = BLOCK(b);
      global const float *mine = w + b * (KD * KH * KW * 16);
      float16 all = 0;
      ONCE for (int t = 0; t < KD * KH * KW; ++t) all += vload16(t, mine);
      const int16 bias = as_int16(as_uint16(vload16(0, BIASES(table) + c)) - as_uint16(convert_int16(all * zero)));
      const float16 scale = vload16(0, MULTIPLIERS(table) + c);
      ONCE for (int ow = 0; ow < OW; ow += COLUMNS) {
        float16 sums[COLUMNS];
        UNROLL for (int u = 0; u < COLUMNS; ++u) sums[u] = 0;
        const int begin = ow * SW - PW;
        const bool whole = begin >= 0 && begin + (COLUMNS - 1) * SW + (KW - 1) * DW < IW;
        ONCE for (int kd = 0; kd < KD; ++kd) {
          const int d = od * SD + kd * DD - PD;
          ONCE for (int kh = 0; kh < KH; ++kh) {
            const int h = oh * SH + kh * DH - PH;
            global const float *taps = mine + (kd * KH + kh) * (KW * 16);
            if (d < 0 || d >= ID || h < 0 || h >= IH) {
              float16 row_sum = 0;
              UNROLL for (int j = 0; j < KW; ++j) row_sum += vload16(j, taps);
              UNROLL for (int u = 0; u < COLUMNS; ++u) sums[u] += row_sum * zero;
              continue;
            }
            global const REAL *from = x + ((long)d * IH + h) * IW * IC + c;
            if (whole) add_row(sums, from, taps, begin, zero, true);
            else add_row(sums, from, taps, begin, zero, false);
          }
        }
        const long at = (((long)image * OD * OH + row) * OW + ow) * OC + c;
        UNROLL for (int u = 0; u < COLUMNS; ++u)
          if (ow + u < OW) put16(y, TABLE_ARGS, convert_int16(sums[u]) + bias, scale, at + u * OC, 16);
      }
    }
  }
}

// packed[block][tap][16]: weights as float32.
kernel void pack(global const char *restrict w, global float *restrict packed, long packed_at) {
  const int b = get_global_id(0), t = get_global_id(1), j = get_global_id(2);
  packed = (global float *)((global uchar *)packed + packed_at);
  packed[(b * (KD * KH * KW) + t) * 16 + j] = w[(long)(BLOCK(b) + j) * (KD * KH * KW) + t];
}
