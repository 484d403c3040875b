// y[image, o, c] = epilogue(sum over taps t of (x[image, o S + t D - P, c] - x_zero) w[c, t]): depthwise, NHWC.
//
// A work item has a word of x, four channels, of ROWS by COLUMNS pixels: a word is read once for all of its taps. Sums are in
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
#define FOUR(i) UNROLL for (int i = 0; i < 4; ++i)
typedef union { uint4 v; uint u[4]; int s[4]; float f[4]; } FOUR_OF;

inline FOUR_OF bytes_less(uint word, float less) {
  FOUR_OF v;
  ON_2_23(v.f[0], word, 0);
  ON_2_23(v.f[1], word, 1);
  ON_2_23(v.f[2], word, 2);
  ON_2_23(v.f[3], word, 3);
  FOUR(i) v.f[i] -= less;
  return v;
}
inline FOUR_OF load_four(global const void *from) {
  FOUR_OF v;
  v.v = *(global const uint4 *)from;
  return v;
}

// Four channels of y from their sums with bias and zero point added; sums are clamped before y's zero point is added.
inline void put_four(global OUT *y, TABLE_PARAMS, const int *sums, const float *scale, float low, float high, int zero, long at) {
#if OUT_BYTES && !RESIDUAL
  uint word = 0;
  FOUR(i) {
    const float v = clamp(mul_rn((float)sums[i], scale[i]), low, high);
    word |= (as_uint(add_rn(v, SHIFT)) + zero & 255) << 8 * i;
  }
  *(global uint *)(y + at) = word;
#else
  FOUR(i) {
#if RESIDUAL
    const ADDED_TYPE r = LOAD_OUT(residual, at + i);
#else
    const ADDED_TYPE r = 0;
#endif
    STORE_OUT(y, at + i, finish_sum(table, sums[i], scale[i], r));
  }
#endif
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void conv(global const uchar *restrict x, global const float *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS) {
  const int item = get_global_id(0);
  if (item >= ITEMS) return;
  const int c = item % WORDS * 4, place = item / WORDS;
  const int ow = place % WIDE * COLUMNS, oh = place / WIDE % HIGH * ROWS, depth = place / (WIDE * HIGH), od = depth % OD, image = depth / OD;
  const float less = 8388608.0f + LOWER + (float)X_ZERO(table), low = WORD(6), high = WORD(7);
  const uint none = (uint)(uchar)(X_ZERO(table) + LOWER) * 0x01010101u;
  const int zero = table[1];
  w = (global const float *)((global const uchar *)w + w_at) + c;
  FOUR_OF sums[ROWS][COLUMNS];
  UNROLL for (int u = 0; u < ROWS; ++u)
    UNROLL for (int j = 0; j < COLUMNS; ++j) FOUR(i) sums[u][j].f[i] = 0;
  for (int kd = 0; kd < KD; ++kd) {
    const int d = od * SD + kd * DD - PD;
    if (d < 0 | d >= ID) continue;
    UNROLL for (int r = 0; r < RISE; ++r) {
      const int h = oh * SH + r - PH;
      if (h < 0 | h >= IH) continue;
      global const uchar *row = x + ((long)(image * ID + d) * IH + h) * (IW * IC) + c;
      FOUR_OF v[SPAN];
      UNROLL for (int t = 0; t < SPAN; ++t) {
        const int column = ow * SW + t - PW;
        v[t] = bytes_less(column >= 0 & column < IW ? *(global const uint *)(row + column * IC) ^ FLIP : none, less);
      }
      UNROLL for (int u = 0; u < ROWS; ++u) {
        const int below = r - u * SH;
        if (below < 0 || below % DH || below / DH >= KH) continue;
        UNROLL for (int kw = 0; kw < KW; ++kw) {
          const FOUR_OF k = load_four(w + ((kd * KH + below / DH) * KW + kw) * (WORDS * 4));
          UNROLL for (int j = 0; j < COLUMNS; ++j) FOUR(i) sums[u][j].f[i] = fma(v[j * SW + kw * DW].f[i], k.f[i], sums[u][j].f[i]);
        }
      }
    }
  }
  const FOUR_OF bias = load_four(BIASES(table) + c), scale = load_four(MULTIPLIERS(table) + c);
  UNROLL for (int u = 0; u < ROWS; ++u)
    UNROLL for (int j = 0; j < COLUMNS; ++j)
      if (oh + u < OH & ow + j < OW) {
        int whole[4];  // the integer, from the bits of its sum with SHIFT
        FOUR(i) whole[i] = (int)(as_uint(sums[u][j].f[i] + SHIFT) - as_uint(SHIFT) + bias.u[i]);
        put_four(y, TABLE_ARGS, whole, scale.f, low, high, zero, (((long)depth * OH + oh + u) * OW + ow + j) * OC + c);
      }
}

// packed[tap][channel]: weights as float32. One work item per weight.
kernel void pack(global const char *restrict w, global float *restrict packed, long packed_at) {
  const int c = get_global_id(0), t = get_global_id(1);
  packed = (global float *)((global uchar *)packed + packed_at);
  packed[t * (WORDS * 4) + c] = w[c * (KD * KH * KW) + t];
}
