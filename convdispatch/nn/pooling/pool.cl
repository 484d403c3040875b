// Pooling, forward and backward (windows and macros: pool_windows.cl). A work item is one element written, or where
// windows are apart from each other one block of dx (a window and the gap to the next): FLAT as they lie in memory
// (GPUs), else (channel, image and pixel). A CPU with channels first has pool_planes.cl.
//
// Values the host defines besides:
//   APART         1 if no value lies in two windows, and none in the padding
//   PAIRS         1 with APART and channels first: SW is 2 and two neighbours of dx lie at a multiple of 8 bytes

#if AVERAGE
#define POOL(pixel)                                           \
  ACC sum = 0;                                                \
  WINDOW(sum += within ? LOAD(x, PIXEL(at)) : (ACC)0;)        \
  STORE(y, PIXEL(pixel), sum / count_of(oy, ox));
#else
#if NOTE
#define KEEP(i) places[i] = (NOTED)(place + (best > 0 ? 0 : CUT));
#else
#define KEEP(i)
#endif
#define POOL(pixel)                                           \
  ACC best = LEAST;                                           \
  int place = -1;                                             \
  WINDOW(const ACC v = LOAD(x, PIXEL(at));                    \
         const int better = within && (place < 0 || v > best || v != v); \
         best = better ? v : best;                            \
         place = better ? number : place;)                    \
  STORE(y, PIXEL(pixel), best);                               \
  KEEP(PIXEL(pixel))
#endif

kernel void pool(global const REAL *restrict x, const long offset, global REAL *restrict y
#if NOTE
                       , global NOTED *restrict places
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

#if APART

// A block is what lies between a window's first value and the next window's; at the far side it may hold no window.
#define BLOCKS_H ((IH + SH - 1) / SH)
#define BLOCKS_W ((IW + SW - 1) / SW)

kernel void pool_backward(global const REAL *restrict dy, const long offset, global const NOTED *restrict places,
                          global REAL *restrict dx) {
  PLACE(BLOCKS_H * BLOCKS_W)
  const int oy = pixel / BLOCKS_W, ox = pixel % BLOCKS_W;
  dy += offset + START(OH * OW);
  places += START(OH * OW);
  dx += START(IH * IW);
  const int some = oy < OH && ox < OW;
  const int from = PIXEL(some ? oy * OW + ox : 0);
  const ACC first = LOAD(dy, from), slope = some ? first : (ACC)0;
#if AVERAGE
  const ACC share = some ? slope / count_of(oy, ox) : (ACC)0;
#else
  const int place = WHERE(places[from]);
#endif
  _Pragma("unroll") for (int y = 0; y < SH; ++y) {
    const int iy = oy * SH + y;
#if AVERAGE
#define VALUE(x) (y % DH == 0 && y / DH < KH && (x) % DW == 0 && (x) / DW < KW ? share : (ACC)0)
#else
#define MINE(x) (BYTES ? y / DH * KW + (x) / DW : iy * IW + ox * SW + (x))
#define VALUE(x) \
  (y % DH == 0 && y / DH < KH && (x) % DW == 0 && (x) / DW < KW && place == MINE(x) ? slope : (ACC)0)
#endif
#if PAIRS
    if (iy < IH) *(global float2 *)(dx + iy * IW + ox * 2) = (float2)(VALUE(0), VALUE(1));
#else
    _Pragma("unroll") for (int x = 0; x < SW; ++x)
      if (iy < IH && ox * SW + x < IW) STORE(dx, PIXEL(iy * IW + ox * SW + x), VALUE(x));
#endif
  }
}

#else

kernel void pool_backward(global const REAL *restrict dy, const long offset, global const NOTED *restrict places,
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
#if ADAPTIVE
      const int held = 1, from = PIXEL(oy * OW + ox);
#endif
#if FLAT
#define TAKEN(test) ((test) ? LOAD(dy, from) : (ACC)0)
#else
      const ACC slope = LOAD(dy, from);
#define TAKEN(test) ((test) ? slope : (ACC)0)
#endif
#if AVERAGE
      // Of a dilated window this value may be none.
      const int mine = held && (iy + PH - oy * SH) % DH == 0 && (ix + PW - ox * SW) % DW == 0;
      const ACC share = LOAD(dy, from) / count_of(oy, ox);
      sum += mine ? share : (ACC)0;
#elif BYTES
      // Of a dilated window this value may be none: then no place is its.
      const int y = iy + PH - oy * SH, x = ix + PW - ox * SW;
      const int mine = y % DH == 0 && x % DW == 0 ? y / DH * KW + x / DW : -1;
      sum += TAKEN(held && WHERE(places[from]) == mine);
#else
      sum += TAKEN(held && WHERE(places[from]) == pixel);
#endif
    }
  STORE(dx, PIXEL(pixel), sum);
}

#endif
