// The epilogue of sixteen output channels of a position, and their stores.
//
// SUMS16    int16 sums with bias and zero point added; FIN: the epilogue before the store
// CHANNEL   elements from channel to channel of y: 1 where channels are last
#include <convdispatch/quantized.cl>
#if OUT_BYTES || OUT_INT32
typedef int16 FIN;
typedef int FIN1;
#else
typedef float16 FIN;
typedef float FIN1;
#endif
#if OUT_FLOAT16
#define LOAD16(p) vload_half16(0, p)
#define STORE16(p, v) vstore_half16_rte(v, 0, p)
typedef float16 ADD;
typedef float ADD1;
#elif OUT_FLOAT32
#define LOAD16(p) vload16(0, p)
#define STORE16(p, v) vstore16(v, 0, p)
typedef float16 ADD;
typedef float ADD1;
#else
#define LOAD16(p) convert_int16(vload16(0, p))
#if OUT_INT8
#define STORE16(p, v) vstore16(convert_char16(v), 0, p)
#elif OUT_UINT8
#define STORE16(p, v) vstore16(convert_uchar16(v), 0, p)
#else
#define STORE16(p, v) vstore16(v, 0, p)
#endif
typedef int16 ADD;
typedef int ADD1;
#endif

inline FIN finished16(TABLE_PARAMS, int16 sums, float16 scale, ADD r) {
#if OUT_INT32
#if RESIDUAL
  sums = as_int16(as_uint16(sums) + as_uint16(r));
#endif
  return clamp(sums, (int16)(table[10]), (int16)(table[11]));
#else
  float16 v = convert_float16(sums) * scale;
#if RESIDUAL
#if OUT_BYTES
  const float16 added = convert_float16(r);
#else
  const float16 added = r;
#endif
  FINISHED_RESIDUAL(float16, v, added)
#endif
  FINISHED(float16, v)
#if OUT_BYTES
  return convert_int16_rte(v) + (int16)(table[1]);
#else
  return v;
#endif
#endif
}

// The first n of sixteen channels; y[at] is the first one's element.
inline void put16(global OUT *y, TABLE_PARAMS, int16 sums, float16 scale, long at, int n) {
  ADD r = 0;
  if (n >= 16 && CHANNEL == 1) {
#if RESIDUAL
    r = LOAD16(residual + at);
#endif
    const FIN v = finished16(TABLE_ARGS, sums, scale, r);
    STORE16(y + at, v);
    return;
  }
#if RESIDUAL
  union { ADD v; ADD1 s[16]; } a;
  a.v = 0;
  ONCE for (int j = 0; j < min(n, 16); ++j) a.s[j] = LOAD_OUT(residual, at + j * CHANNEL);
  r = a.v;
#endif
  union { FIN v; FIN1 s[16]; } u;
  u.v = finished16(TABLE_ARGS, sums, scale, r);
  ONCE for (int j = 0; j < min(n, 16); ++j) STORE_OUT(y, at + j * CHANNEL, u.s[j]);
}
