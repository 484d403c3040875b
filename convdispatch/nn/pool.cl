// y[o] = largest or mean of x over the window of o; dx[i] = sum of dy over the windows that hold i, of those whose
// largest value i is, or divided by the window's count. One work item an element written: (pixel, image and channel)
// for channels first, (channel, image and pixel) for channels last; or, where a CPU has channels first, one a plane (an
// image's channel), which turns the loop over pixels into vectors and lets the gradient be scattered.
//
// Values the host defines:
//   IH IW OH OW   sizes of x and y
//   ADAPTIVE      1: window o covers floor(o * I / O) to ceil((o + 1) * I / O); 0: K values D apart, from o * S - P
//   KH KW SH SW PH PW DH DW   unless ADAPTIVE
//   AVERAGE       1 for the mean, 0 for the largest
//   COUNT_PAD     1 if the padding's zeros count in a mean
//   CHANNELS NHWC the layout
//   PLANES        1 for one work item a plane; REAL is ACC
//   INSIDE        1 if no window reaches beyond the input
//   NOTE          1 to store each window's place of the largest (pixel index in its image and channel)
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
#define PLACE(area)                                \
  const int pixel = get_global_id(1) % (area);     \
  const long image = get_global_id(1) / (area);
#define START(area) (image * (area) * CHANNELS + (long)get_global_id(0))
#else
#define PIXEL(pixel) (pixel)
#if PLANES
#define START(area) ((long)get_global_id(0) * (area))
#else
#define PLACE(area) const int pixel = get_global_id(0);
#define START(area) ((long)get_global_id(1) * (area))
#endif
#endif
#if PLANES
#define ALONE __attribute__((reqd_work_group_size(1, 1, 1)))
#else
#define ALONE
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

// Runs over the window's values inside the input, each at pixel `at`. Windows of one size run a constant number of times,
// and compare only where a window can leave the input.
#if ADAPTIVE
#define WINDOW(body)                                                                            \
  const int bottom = END(oy, IH, OH, KH, SH, PH, DH), right = END(ox, IW, OW, KW, SW, PW, DW);  \
  for (int iy = BEGIN(oy, IH, OH, KH, SH, PH); iy < bottom; ++iy)                               \
    for (int ix = BEGIN(ox, IW, OW, KW, SW, PW); ix < right; ++ix) {                            \
      const int at = iy * IW + ix;                                                              \
      body                                                                                      \
    }
#else
#define WINDOW(body)                                                                            \
  _Pragma("unroll") for (int ky = 0; ky < KH; ++ky)                                             \
    _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {                                         \
      const int iy = oy * SH - PH + ky * DH, ix = ox * SW - PW + kx * DW, at = iy * IW + ix;    \
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
#define KEEP(i, place) places[i] = place;
#else
#define KEEP(i, place)
#endif
#define POOL(pixel)                                           \
  ACC best = -INFINITY;                                       \
  int place = -1;                                             \
  WINDOW(const ACC v = LOAD(x, PIXEL(at));                    \
         const int better = place < 0 || v > best || v != v;  \
         best = better ? v : best;                            \
         place = better ? at : place;)                        \
  STORE(y, PIXEL(pixel), best);                               \
  KEEP(PIXEL(pixel), place)
#endif

kernel ALONE void pool(global const REAL *restrict x, const long offset, global REAL *restrict y
#if NOTE
                       , global int *restrict places
#endif
) {
#if PLANES
  x += offset + START(IH * IW);
  y += START(OH * OW);
#if NOTE
  places += START(OH * OW);
#endif
  for (int oy = 0; oy < OH; ++oy)
    for (int ox = 0; ox < OW; ++ox) {
      POOL(oy * OW + ox)
    }
#else
  PLACE(OH * OW)
  const int oy = pixel / OW, ox = pixel % OW;
  x += offset + START(IH * IW);
  y += START(OH * OW);
#if NOTE
  places += START(OH * OW);
#endif
  POOL(pixel)
#endif
}

#if PLANES

kernel ALONE void pool_backward(global const REAL *restrict dy, const long offset, global const int *restrict places,
                                global REAL *restrict dx) {
  dy += offset + START(OH * OW);
  places += START(OH * OW);
  dx += START(IH * IW);
  for (int i = 0; i < IH * IW; ++i) dx[i] = 0;
  for (int oy = 0; oy < OH; ++oy)
    for (int ox = 0; ox < OW; ++ox) {
#if AVERAGE
      const ACC share = LOAD(dy, oy * OW + ox) / count_of(oy, ox);
      WINDOW(dx[at] += share;)
#else
      dx[places[oy * OW + ox]] += LOAD(dy, oy * OW + ox);
#endif
    }
}

#else

kernel void pool_backward(global const REAL *dy, const long offset, global const int *places, global REAL *dx) {
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
#else
      sum += places[from] == pixel ? LOAD(dy, from) : (ACC)0;
#endif
    }
  STORE(dx, PIXEL(pixel), sum);
}

#endif
