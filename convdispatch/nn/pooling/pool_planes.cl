// Pooling of planes, forward and backward, for CPUs with channels first (windows and macros: pool_windows.cl): a work
// item is one plane, an image's channel, so that a row becomes vectors and the gradient can be scattered.
//
// A row's windows are those with all columns inside, LANES at a time as vectors, and those that reach beyond a side, one
// at a time. The last vector begins early enough to end with the others: what two write is the same. So nothing is left
// over for the compiler to make vectors of.
//
// Values the host defines besides:
//   SAFE_FIRST SAFE_END   of a row's windows with all columns inside the first and the one behind the last
//   LANES         with NOTE 16, 8 or 4: so many windows at once, at most SAFE_END - SAFE_FIRST; 1: none (pool_rows.cl
//                 has vectors where no places are noted)
//   REAL          float or double, and ACC is the same

#define ALONE __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
#define LAST_OF_PLAIN (LANES > 1 ? SAFE_FIRST : OW)
// Runs over the windows of row `oy` that are taken one at a time.
#define EACH_ALONE(body)                                      \
  for (int ox = 0; ox < LAST_OF_PLAIN; ++ox) { body }         \
  for (int ox = LANES > 1 ? SAFE_END : OW; ox < OW; ++ox) { body }

#if AVERAGE
#define POOL                                                  \
  ACC sum = 0;                                                \
  WINDOW(sum += within ? x[at] : (ACC)0;)                     \
  y[oy * OW + ox] = sum / count_of(oy, ox);
#else
#if NOTE
#define KEEP(i) places[i] = place + (best > 0 ? 0 : CUT);
#else
#define KEEP(i)
#endif
#define POOL                                                  \
  ACC best = -INFINITY;                                       \
  int place = -1;                                             \
  WINDOW(const ACC v = x[at];                                 \
         const int better = within && (place < 0 || v > best || v != v); \
         best = better ? v : best;                            \
         place = better ? number : place;)                    \
  y[oy * OW + ox] = best;                                     \
  KEEP(oy * OW + ox)
#endif

#if LANES > 1
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define OF(type) JOIN(type, LANES)
typedef OF(REAL) __attribute__((aligned(4))) few;
typedef OF(int) __attribute__((aligned(4))) few_places;
#if LANES == 16
#define LANE_NUMBERS (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#elif LANES == 8
#define LANE_NUMBERS (int8)(0, 1, 2, 3, 4, 5, 6, 7)
#else
#define LANE_NUMBERS (int4)(0, 1, 2, 3)
#endif

// What the windows from one on, SW apart, have at one tap; nothing behind the last is read.
inline OF(REAL) take(global const REAL *from) {
#if SW == 1
  return *(global const few *)from;
#else
  return (OF(REAL))((*(global const few *)from).even, (*(global const few *)(from + LANES - 1)).odd);
#endif
}
#endif

kernel ALONE void pool(global const REAL *restrict x, const long offset, global REAL *restrict y
#if NOTE
                       , global NOTED *restrict places
#endif
) {
  PLACE(0)
  x += offset + START(IH * IW);
  y += START(OH * OW);
#if NOTE
  places += START(OH * OW);
#endif
  for (int oy = 0; oy < OH; ++oy) {
    EACH_ALONE(POOL)
#if LANES > 1
    for (int next = SAFE_FIRST; next < SAFE_END; next += LANES) {
      const int ox = min(next, SAFE_END - LANES), left = ox * SW - PW;
      OF(REAL) best = -INFINITY;
      OF(int) place = -1;
      for (int ky = 0; ky < KH; ++ky) {
        const int iy = oy * SH - PH + ky * DH;
        if (iy < 0 || iy >= IH) continue;  // for all lanes alike
        _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {
          const OF(REAL) v = take(x + iy * IW + left + kx * DW);
          const OF(int) better = place < 0 || JOIN(convert_int, LANES)(v > best || v != v);
          place = better ? iy * IW + left + kx * DW + SW * LANE_NUMBERS : place;
          best = v > best || v != v ? v : best;
        }
      }
      *(global few *)(y + oy * OW + ox) = best;
      const OF(int) cut = JOIN(convert_int, LANES)(best > 0) ? (OF(int))0 : (OF(int))CUT;
      *(global few_places *)(places + oy * OW + ox) = place + cut;
    }
#endif
  }
}

kernel ALONE void pool_backward(global const REAL *restrict dy, const long offset, global const NOTED *restrict places,
                                global REAL *restrict dx) {
  PLACE(0)
  dy += offset + START(OH * OW);
  places += START(OH * OW);
  dx += START(IH * IW);
  for (int i = 0; i < IH * IW; ++i) dx[i] = 0;
  for (int oy = 0; oy < OH; ++oy)
    for (int ox = 0; ox < OW; ++ox) {
      const int from = oy * OW + ox;
#if AVERAGE
      const ACC share = dy[from] / count_of(oy, ox);
      WINDOW(dx[at] += within ? share : (ACC)0;)
#else
      const int place = WHERE(places[from]);
      dx[place < CUT ? place : 0] += place < CUT ? dy[from] : (ACC)0;
#endif
    }
}
