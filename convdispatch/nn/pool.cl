// y[o] = largest or mean of x over the window of o; dx[i] = sum of dy over the windows that hold i, of those whose
// largest value i is, or divided by the window's count. One work item an element written: (pixel, image and channel)
// for channels first, (channel, image and pixel) for channels last.
//
// Values the host defines:
//   IH IW OH OW   sizes of x and y
//   ADAPTIVE      1: window o covers floor(o * I / O) to ceil((o + 1) * I / O); 0: K values D apart, from o * S - P
//   KH KW SH SW PH PW DH DW   unless ADAPTIVE
//   AVERAGE       1 for the mean, 0 for the largest
//   COUNT_PAD     1 if the padding's zeros count in a mean
//   CHANNELS NHWC the layout
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
#if NHWC
#define AT(plane, pixel, area) (((plane) / CHANNELS * (area) + (pixel)) * CHANNELS + (plane) % CHANNELS)
#else
#define AT(plane, pixel, area) ((plane) * (area) + (pixel))
#endif

// The pixel and the plane (image * CHANNELS + channel) of this work item, among `area` pixels.
#if NHWC
#define PLACE(area)                                              \
  const int pixel = get_global_id(1) % (area);                   \
  const long plane = get_global_id(1) / (area) * (long)CHANNELS + get_global_id(0);
#else
#define PLACE(area)                       \
  const int pixel = get_global_id(0);     \
  const long plane = get_global_id(1);
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

kernel void pool(global const REAL *x, const long offset, global REAL *y
#if NOTE
                 , global int *places
#endif
) {
  PLACE(OH * OW)
  const int oy = pixel / OW, ox = pixel % OW;
  const int bottom = min(IH, END(oy, IH, OH, KH, SH, PH, DH)), right = min(IW, END(ox, IW, OW, KW, SW, PW, DW));
  int top = BEGIN(oy, IH, OH, KH, SH, PH), left = BEGIN(ox, IW, OW, KW, SW, PW);
  if (top < 0) top += (-top + DH - 1) / DH * DH;
  if (left < 0) left += (-left + DW - 1) / DW * DW;
  x += offset;
#if AVERAGE
  ACC sum = 0;
  for (int iy = top; iy < bottom; ++iy)
    for (int ix = left; ix < right; ++ix) sum += LOAD(x, AT(plane, iy * IW + ix, IH * IW));
  STORE(y, AT(plane, pixel, OH * OW), sum / count_of(oy, ox));
#else
  ACC best = -INFINITY;
  int place = top * IW + left;
  for (int iy = top; iy < bottom; iy += DH)
    for (int ix = left; ix < right; ix += DW) {
      const ACC v = LOAD(x, AT(plane, iy * IW + ix, IH * IW));
      const int better = v > best || v != v;
      best = better ? v : best;
      place = better ? iy * IW + ix : place;
    }
  STORE(y, AT(plane, pixel, OH * OW), best);
#if NOTE
  places[AT(plane, pixel, OH * OW)] = place;
#endif
#endif
}

kernel void pool_backward(global const REAL *dy, const long offset, global const int *places, global REAL *dx) {
  PLACE(IH * IW)
  const int iy = pixel / IW, ix = pixel % IW;
  const int top = FIRST(iy, IH, OH, KH, SH, PH, DH), bottom = LAST(iy, IH, OH, SH, PH);
  const int left = FIRST(ix, IW, OW, KW, SW, PW, DW), right = LAST(ix, IW, OW, SW, PW);
  dy += offset;
  ACC sum = 0;
  for (int oy = top; oy <= bottom; ++oy)
    for (int ox = left; ox <= right; ++ox) {
      const long from = AT(plane, oy * OW + ox, OH * OW);
#if AVERAGE
      sum += LOAD(dy, from) / count_of(oy, ox);
#else
      sum += places[from] == pixel ? LOAD(dy, from) : (ACC)0;
#endif
    }
  STORE(dx, AT(plane, pixel, IH * IW), sum);
}
