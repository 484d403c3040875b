// Pooling forward on CPUs where nobody asks for places (windows and macros: pool_windows.cl), in vectors: first a row's
// columns, then along the row.
//
// Channels first, a work item is one plane, an image's channel. Its rows under one row of windows become one row, the
// largest or the sum of each column, with the padding at its ends; windows are taken from that, LANES at a time.
// Channels last, a work item is one row of windows of an image, and a vector LANES channels. The last vector of a row
// begins early enough to end with the others: what two write is the same.
//
// The largest of vectors loses NaNs. So what is read is added up as well: where that is NaN (as with infinities of both
// signs) the row is taken once more, one value at a time.
//
// Values the host defines besides:
//   LANES         16, 8 or 4: at most OW and IW, or CHANNELS
//   SW            1 or 2 with channels first
//   REAL          float or double, and ACC is the same; or INTEGER: of 8 bits, and AVERAGE is 0

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define OF(type) JOIN(type, LANES)
typedef OF(REAL) __attribute__((aligned(INTEGER ? 1 : 4))) few;
#define AT(p) (*(global const few *)(p))
#define INTO(p) (*(global few *)(p))
#define PROBED (!AVERAGE && !INTEGER)

#if AVERAGE
#define NOTHING 0
#define TAKE(into, v) into += v;
#else
#define NOTHING LEAST
#define TAKE(into, v) into = into > v ? into : v;
// One value of y from a plane of x.
#define ONE(x, y)                                             \
  ACC best = LEAST;                                           \
  WINDOW(const ACC v = (x)[PIXEL(at)];                        \
         best = within && (v > best || v != v) ? v : best;)   \
  (y)[PIXEL(oy * OW + ox)] = best;
#endif

#if NHWC

#define RANGE(ky) (oy * SH - PH + (ky) * DH)
#define COLUMN(kx) (ox * SW - PW + (kx) * DW)

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16))) void pool(
    global const REAL *restrict x, const long offset, global REAL *restrict y) {
  const int oy = get_global_id(0) % OH;
  const long image = get_global_id(0) / OH;
  x += offset + image * (IH * IW) * CHANNELS;
  y += image * (OH * OW) * CHANNELS;
  for (int ox = 0; ox < OW; ++ox) {
    OF(REAL) probe = 0;
    for (int next = 0; next < CHANNELS; next += LANES) {
      const int channel = min(next, CHANNELS - LANES);
      OF(REAL) found = NOTHING;
      _Pragma("unroll") for (int ky = 0; ky < KH; ++ky)
        _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {
          const int iy = RANGE(ky), ix = COLUMN(kx);
          if (!INSIDE && (iy < 0 || iy >= IH || ix < 0 || ix >= IW)) continue;  // for all lanes alike
          const OF(REAL) v = AT(x + (iy * IW + ix) * (long)CHANNELS + channel);
          TAKE(found, v)
#if PROBED
          probe += v;
#endif
        }
#if AVERAGE
      found /= count_of(oy, ox);
#endif
      INTO(y + (oy * OW + ox) * (long)CHANNELS + channel) = found;
    }
#if PROBED
    if (any(isnan(probe)))
      for (int channel = 0; channel < CHANNELS; ++channel) { ONE(x + channel, y + channel) }
#endif
  }
}

#else

// What the windows of one row read: the padding, the columns, and what windows beyond the far side read.
#define REACH ((OW - 1) * SW + (KW - 1) * DW + 1)
#define WIDTH (PW + IW > REACH ? PW + IW : REACH)

// Every SW-th of a row from one value on; nothing behind the last is read.
inline OF(REAL) take(const REAL *from) {
#if SW == 1
  return *(const few *)from;
#else
  return (OF(REAL))((*(const few *)from).even, (*(const few *)(from + LANES - 1)).odd);
#endif
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16))) void pool(
    global const REAL *restrict x, const long offset, global REAL *restrict y) {
  const long plane = get_global_id(0);
  x += offset + START(IH * IW);
  y += START(OH * OW);
  REAL row[WIDTH];
  for (int i = 0; i < PW; ++i) row[i] = NOTHING;
  for (int i = PW + IW; i < WIDTH; ++i) row[i] = NOTHING;
#if AVERAGE
  REAL columns[OW];
  for (int ox = 0; ox < OW; ++ox) columns[ox] = columns_of(ox);
#endif
  for (int oy = 0; oy < OH; ++oy) {
    OF(REAL) probe = 0;
    for (int next = 0; next < IW; next += LANES) {
      const int ix = min(next, IW - LANES);
      OF(REAL) found = NOTHING;
      _Pragma("unroll") for (int ky = 0; ky < KH; ++ky) {
        const int iy = oy * SH - PH + ky * DH;
        if (!INSIDE && (iy < 0 || iy >= IH)) continue;  // for all lanes alike
        const OF(REAL) v = AT(x + iy * IW + ix);
        TAKE(found, v)
#if PROBED
        probe += v;
#endif
      }
      *(few *)(row + PW + ix) = found;
    }
#if PROBED
    if (any(isnan(probe))) {
      for (int ox = 0; ox < OW; ++ox) { ONE(x, y) }
      continue;
    }
#endif
    for (int next = 0; next < OW; next += LANES) {
      const int ox = min(next, OW - LANES);
      OF(REAL) found = NOTHING;
      _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {
        const OF(REAL) v = take(row + ox * SW + kx * DW);
        TAKE(found, v)
      }
#if AVERAGE
      found /= *(const few *)(columns + ox) * rows_of(oy);
#endif
      INTO(y + oy * OW + ox) = found;
    }
  }
}

#endif
