// Pooling, forward and backward (windows and macros: pool_windows.cl). A work item is one element written: FLAT as they
// lie in memory (GPUs), else (channel, image and pixel).

#if AVERAGE
#define POOL(pixel)                                           \
  ACC sum = 0;                                                \
  WINDOW(sum += within ? LOAD(x, PIXEL(at)) : (ACC)0;)        \
  STORE(y, PIXEL(pixel), sum / count_of(oy, ox));
#else
#if NOTE
#define KEEP(i) places[i] = place;
#else
#define KEEP(i)
#endif
#define POOL(pixel)                                           \
  ACC best = LEAST;                                           \
  int place = -1;                                             \
  WINDOW(const ACC v = LOAD(x, PIXEL(at));                    \
         const int better = within && (place < 0 || v > best || v != v); \
         best = better ? v : best;                            \
         place = better ? at : place;)                        \
  STORE(y, PIXEL(pixel), best);                               \
  KEEP(PIXEL(pixel))
#endif

kernel void pool(global const REAL *restrict x, const long offset, global REAL *restrict y
#if NOTE
                       , global int *restrict places
#endif
) {
  PLACE(OH * OW)
  x += offset + START(IH * IW);
  y += START(OH * OW);
#if NOTE
  places += START(OH * OW);
#endif
  const int oy = pixel / OW, ox = pixel % OW;
  POOL(pixel)
}

kernel void pool_backward(global const REAL *restrict dy, const long offset, global const int *restrict places,
                          global REAL *restrict dx) {
  PLACE(IH * IW)
  const int iy = pixel / IW, ix = pixel % IW;
  const int top = FIRST(iy, IH, OH, KH, SH, PH, DH), bottom = LAST(iy, IH, OH, SH, PH);
  const int left = FIRST(ix, IW, OW, KW, SW, PW, DW), right = LAST(ix, IW, OW, SW, PW);
  dy += offset + START(OH * OW);
  places += START(OH * OW);
  dx += START(IH * IW);
  ACC sum = 0;
#if ADAPTIVE
  for (int oy = top; oy <= bottom; ++oy)
    for (int ox = left; ox <= right; ++ox) {
      const int held = 1, from = PIXEL(oy * OW + ox);
#else
  // At most this many windows hold one value.
#define MOST_H ((KH - 1) * DH / SH + 1)
#define MOST_W ((KW - 1) * DW / SW + 1)
  _Pragma("unroll") for (int j = 0, oy = bottom; j < MOST_H; ++j, --oy)
    _Pragma("unroll") for (int i = 0, ox = right; i < MOST_W; ++i, --ox) {
      const int held = oy >= top && ox >= left;
#if FLAT || NHWC
      if (!held) continue;
      const int from = PIXEL(oy * OW + ox);
#else
      const int from = PIXEL(clamp(oy, 0, OH - 1) * OW + clamp(ox, 0, OW - 1));
#endif
#endif
      const ACC slope = LOAD(dy, from);
#if AVERAGE
      // Of a dilated window this value may be none.
      const int mine = held && (iy + PH - oy * SH) % DH == 0 && (ix + PW - ox * SW) % DW == 0;
      const ACC share = slope / count_of(oy, ox);
      sum += mine ? share : (ACC)0;
#else
      sum += held && places[from] == pixel ? slope : (ACC)0;
#endif
    }
  STORE(dx, PIXEL(pixel), sum);
}
