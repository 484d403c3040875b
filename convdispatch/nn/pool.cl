// y[o] = largest or mean of x over the window of o; dx[i] = sum of dy over the windows that hold i, of those whose
// largest value i is, or divided by the window's count. A work item is one element written, or where windows are apart
// from each other one block of dx (a window and the gap to the next): FLAT as they lie in memory (GPUs), else (channel,
// image and pixel). Where a CPU has channels first it is one plane (an image's channel), which turns the loop over
// pixels into vectors and lets the gradient be scattered.
//
// Values the host defines:
//   IH IW OH OW   sizes of x and y
//   ADAPTIVE      1: window o covers floor(o * I / O) to ceil((o + 1) * I / O); 0: K values D apart, from o * S - P
//   KH KW SH SW PH PW DH DW   unless ADAPTIVE
//   AVERAGE       1 for the mean, 0 for the largest
//   COUNT_PAD     1 if the padding's zeros count in a mean
//   MB CHANNELS NHWC   images, channels, the layout
//   FLAT PLANES   how work items are counted; with PLANES REAL is ACC
//   INDEX         uint or ulong: holds any element's number
//   INSIDE        1 if no window reaches beyond the input
//   APART         1 if no value lies in two windows, and none in the padding
//   PAIRS         1 with APART and channels first: SW is 2 and two neighbours of dx lie at a multiple of 8 bytes
//   NOTE          1 to store each window's place of the largest
//   BYTES         1 if a note is a byte, ky * KW + kx; 0: an int, the pixel; both plus CUT unless the largest is above 0
//   GATED         1 to take no gradient where the largest is not above 0: the slope of a ReLU that made x
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)

#if ADAPTIVE
#define BEGIN(o, i, n, k, s, p) ((o) * (i) / (n))
#define END(o, i, n, k, s, p, d) (((o) + 1) * (i) + (n) - 1) / (n)
#define FIRST(at, i, n, k, s, p, d) ((at) * (n) / (i))
#define LAST(at, i, n, s, p) min((n) - 1, (((at) + 1) * (n) + (i) - 1) / (i) - 1)
#define DH 1
#define DW 1
#define KH 0
#define KW 0
#define SH 0
#define SW 0
#define PH 0
#define PW 0
#else
#define BEGIN(o, i, n, k, s, p) ((o) * (s) - (p))
#define END(o, i, n, k, s, p, d) ((o) * (s) - (p) + ((k) - 1) * (d) + 1)
#define FIRST(at, i, n, k, s, p, d) max(0, ((at) + (p) - ((k) - 1) * (d) + (s) - 1) / (s))
#define LAST(at, i, n, s, p) min((n) - 1, ((at) + (p)) / (s))
#endif
// Where element `pixel` of this work item's plane (image and channel) lies, counted from the plane's first.
#if NHWC
#define PIXEL(pixel) ((pixel) * CHANNELS)
#define START(area) (image * (area) * CHANNELS + (long)channel)
#else
#define PIXEL(pixel) (pixel)
#define START(area) ((long)plane * (area))
#endif
// This work item's plane, and its pixel among the `area` ones that work items are counted over.
#if PLANES
#define PLACE(area) const long plane = get_global_id(0);
#elif FLAT
#define ITEM(area)                                          \
  const INDEX item = get_global_id(0);                      \
  if (item >= (INDEX)MB * CHANNELS * (area)) return;
#if NHWC
#define PLACE(area)                                         \
  ITEM(area)                                                \
  const INDEX channel = item % CHANNELS, spot = item / CHANNELS; \
  const int pixel = spot % (area);                          \
  const long image = spot / (area);
#else
#define PLACE(area)                                         \
  ITEM(area)                                                \
  const INDEX plane = item / (area);                        \
  const int pixel = item % (area);
#endif
#elif NHWC
#define PLACE(area)                                         \
  const long channel = get_global_id(0); /* as an int: no vectors */ \
  const int pixel = get_global_id(1) % (area);              \
  const long image = get_global_id(1) / (area);
#else
#define PLACE(area)                                         \
  const int pixel = get_global_id(0);                       \
  const long plane = get_global_id(1);
#endif
#if PLANES
#define ALONE __attribute__((reqd_work_group_size(1, 1, 1)))
#else
#define ALONE
#endif
#if BYTES
#define NOTED uchar
#define CUT 128
#else
#define NOTED int
#define CUT (1 << 30)
#endif
// The place that a note names; with GATED it is none, CUT or more, where the largest is not above 0.
#if GATED
#define WHERE(note) (note)
#else
#define WHERE(note) ((note) & (CUT - 1))
#endif

inline ACC count_of(int oy, int ox) {
  int top = BEGIN(oy, IH, OH, KH, SH, PH), bottom = END(oy, IH, OH, KH, SH, PH, DH);
  int left = BEGIN(ox, IW, OW, KW, SW, PW), right = END(ox, IW, OW, KW, SW, PW, DW);
#if COUNT_PAD
  bottom = min(bottom, IH + PH), right = min(right, IW + PW);
#else
  top = max(top, 0), left = max(left, 0), bottom = min(bottom, IH), right = min(right, IW);
#endif
  return (ACC)((bottom - top) * (right - left));
}

// Runs over the window's values inside the input, each at pixel `at`; a note calls it `number`. Windows of one size run
// a constant number of times, and compare only where a window can leave the input.
#if ADAPTIVE
#define WINDOW(body)                                                                            \
  const int bottom = END(oy, IH, OH, KH, SH, PH, DH), right = END(ox, IW, OW, KW, SW, PW, DW);  \
  for (int iy = BEGIN(oy, IH, OH, KH, SH, PH); iy < bottom; ++iy)                               \
    for (int ix = BEGIN(ox, IW, OW, KW, SW, PW); ix < right; ++ix) {                            \
      const int at = iy * IW + ix, number = at;                                                 \
      body                                                                                      \
    }
#else
#define WINDOW(body)                                                                            \
  _Pragma("unroll") for (int ky = 0; ky < KH; ++ky)                                             \
    _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {                                         \
      const int iy = oy * SH - PH + ky * DH, ix = ox * SW - PW + kx * DW;                       \
      const int at = iy * IW + ix, number = BYTES ? ky * KW + kx : at;                          \
      if (INSIDE || (iy >= 0 && iy < IH && ix >= 0 && ix < IW)) { body }                        \
    }
#endif

#if AVERAGE
#define POOL(pixel)                                           \
  ACC sum = 0;                                                \
  WINDOW(sum += LOAD(x, PIXEL(at));)                          \
  STORE(y, PIXEL(pixel), sum / count_of(oy, ox));
#else
#if NOTE
#define KEEP(i) places[i] = (NOTED)(place + (best > 0 ? 0 : CUT));
#else
#define KEEP(i)
#endif
#define POOL(pixel)                                           \
  ACC best = -INFINITY;                                       \
  int place = -1;                                             \
  WINDOW(const ACC v = LOAD(x, PIXEL(at));                    \
         const int better = place < 0 || v > best || v != v;  \
         best = better ? v : best;                            \
         place = better ? number : place;)                    \
  STORE(y, PIXEL(pixel), best);                               \
  KEEP(PIXEL(pixel))
#endif

kernel ALONE void pool(global const REAL *restrict x, const long offset, global REAL *restrict y
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
#if PLANES
  for (int oy = 0; oy < OH; ++oy)
    for (int ox = 0; ox < OW; ++ox) {
      POOL(oy * OW + ox)
    }
#else
  const int oy = pixel / OW, ox = pixel % OW;
  POOL(pixel)
#endif
}

#if PLANES

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
      const ACC share = LOAD(dy, from) / count_of(oy, ox);
      WINDOW(dx[at] += share;)
#else
      const int place = WHERE(places[from]);
      if (place < CUT) dx[place] += LOAD(dy, from);
#endif
    }
}

#elif APART

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
  const ACC slope = some ? LOAD(dy, from) : (ACC)0;
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
      if (oy < top || ox < left) continue;
#endif
      const int from = PIXEL(oy * OW + ox);
#if AVERAGE
      sum += LOAD(dy, from) / count_of(oy, ox);
#elif BYTES
      // Of a dilated window this value may be none: then no place is its.
      const int y = iy + PH - oy * SH, x = ix + PW - ox * SW;
      const int mine = y % DH == 0 && x % DW == 0 ? y / DH * KW + x / DW : -1;
      sum += WHERE(places[from]) == mine ? LOAD(dy, from) : (ACC)0;
#else
      sum += WHERE(places[from]) == pixel ? LOAD(dy, from) : (ACC)0;
#endif
    }
  STORE(dx, PIXEL(pixel), sum);
}

#endif
