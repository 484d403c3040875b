// y[image, o, c] = finished(sum over taps t of (x[image, o S + t D - P, c] - x_zero) w[c, t]): depthwise, channels last.
//
// A work item has a word of x, four channels, of ROWS by COLUMNS places: a word is read once for all of its taps. Sums are in
// float32, where those of up to 128 products of 9 and 8 bits are whole numbers below 2 ** 22. Beside x stands x_zero, which
// adds nothing.
//
// the problem's letters; WORDS of a pixel; WIDE, HIGH  work items along a row and a column of y; ITEMS of them all
// FLIP  what a word is combined with, so that its bytes are unsigned; LOWER  what that adds to them
#include <convdispatch/quantized.cl>
#define SPAN ((COLUMNS - 1) * SW + (KW - 1) * DW + 1)  // columns of x that a work item reads, and rows
#define RISE ((ROWS - 1) * SH + (KH - 1) * DH + 1)
#define UNROLL __attribute__((opencl_unroll_hint))
#define SHIFT 12582912.0f  // 1.5 * 2 ** 23: a sum with it is rounded to an integer, half to even

// 2 ** 23 and a byte of a word.
#ifdef __NV_CL_C_VERSION
#define ON_2_23(to, word, i) asm("prmt.b32 %0, %1, 0x4b000000, %2;" : "=f"(to) : "r"(word), "n"(0x7540 + i))
#else
#define ON_2_23(to, word, i) to = as_float(0x4b000000u | ((word) >> 8 * i & 255))
#endif
inline float4 four_of(uint word, float less) {
  float a, b, c, d;
  ON_2_23(a, word, 0);
  ON_2_23(b, word, 1);
  ON_2_23(c, word, 2);
  ON_2_23(d, word, 3);
  return (float4)(a, b, c, d) - less;
}

// Four channels of y from their sums, bias and zero point added. limits: of y, before its zero point; the bits of that.
inline void put_four(global OUT *y, TABLE_PARAMS, const int *sums, float4 scale, float4 limits, long at) {
  union { float4 v; float s[4]; } m = {scale};
#if OUT_BYTES && !RESIDUAL
  uint word = 0;
  UNROLL for (int i = 0; i < 4; ++i) {
    const float v = clamp(mul_rn((float)sums[i], m.s[i]), limits.x, limits.y);
    word |= (as_uint(add_rn(v, SHIFT)) + as_uint(limits.z) & 255) << 8 * i;
  }
  *(global uint *)(y + at) = word;
#else
  UNROLL for (int i = 0; i < 4; ++i) {
#if RESIDUAL
    const ADDED_TYPE r = LOAD_OUT(residual, at + i);
#else
    const ADDED_TYPE r = 0;
#endif
    STORE_OUT(y, at + i, finish_sum(table, sums[i], m.s[i], r));
  }
#endif
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void conv(global const uchar *restrict x, global const float *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS) {
  const int item = get_global_id(0);
  if (item >= ITEMS) return;
  const int c = item % WORDS * 4, place = item / WORDS;
  const int ow = place % WIDE * COLUMNS, oh = place / WIDE % HIGH * ROWS, depth = place / (WIDE * HIGH), od = depth % OD, image = depth / OD;
  const float less = 8388608.0f + LOWER + (float)X_ZERO(table);
  const uint none = (uint)(uchar)(X_ZERO(table) + LOWER) * 0x01010101u;
  w = (global const float *)((global const uchar *)w + w_at) + c;
  float4 sums[ROWS][COLUMNS];
  UNROLL for (int u = 0; u < ROWS; ++u)
    UNROLL for (int j = 0; j < COLUMNS; ++j) sums[u][j] = 0;
  for (int kd = 0; kd < KD; ++kd) {
    const int d = od * SD + kd * DD - PD;
    if (d < 0 | d >= ID) continue;
    UNROLL for (int r = 0; r < RISE; ++r) {
      const int h = oh * SH + r - PH;
      if (h < 0 | h >= IH) continue;
      global const uchar *row = x + ((long)(image * ID + d) * IH + h) * (IW * IC) + c;
      float4 v[SPAN];
      UNROLL for (int t = 0; t < SPAN; ++t) {
        const int column = ow * SW + t - PW;
        v[t] = four_of(column >= 0 & column < IW ? *(global const uint *)(row + column * IC) ^ FLIP : none, less);
      }
      UNROLL for (int u = 0; u < ROWS; ++u) {
        const int below = r - u * SH;
        if (below < 0 || below % DH || below / DH >= KH) continue;
        UNROLL for (int kw = 0; kw < KW; ++kw) {
          const float4 k = vload4(0, w + ((kd * KH + below / DH) * KW + kw) * (WORDS * 4));
          UNROLL for (int j = 0; j < COLUMNS; ++j) sums[u][j] = fma(v[j * SW + kw * DW], k, sums[u][j]);
        }
      }
    }
  }
  const int4 bias = vload4(0, BIASES(table) + c);
  const float4 scale = vload4(0, MULTIPLIERS(table) + c), limits = (float4)(WORD(6), WORD(7), WORD(1), 0.0f);
  UNROLL for (int u = 0; u < ROWS; ++u)
    UNROLL for (int j = 0; j < COLUMNS; ++j)
      if (oh + u < OH & ow + j < OW) {
        // The integer, from the bits of its sum with SHIFT.
        const int4 whole = as_int4(as_uint4(sums[u][j] + SHIFT) - as_uint(SHIFT) + as_uint4(bias));
        const int each[4] = {whole.x, whole.y, whole.z, whole.w};
        put_four(y, TABLE_ARGS, each, scale, limits, (((long)depth * OH + oh + u) * OW + ow + j) * OC + c);
      }
}

// packed[tap][channel]: weights as float32. A work item a weight.
kernel void pack(global const char *restrict w, global float *restrict packed, long packed_at) {
  const int c = get_global_id(0), t = get_global_id(1);
  packed = (global float *)((global uchar *)packed + packed_at);
  packed[t * (WORDS * 4) + c] = w[c * (KD * KH * KW) + t];
}
