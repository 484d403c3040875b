// What the pooling kernels share: windows, and where work items stand.
//
// y[o] = largest or mean of x over the window of o; dx[i] = sum of dy over the windows that hold i, of those whose
// largest value i is, or divided by the window's count.
//
// Values the host defines:
//   IH IW OH OW   sizes of x and y
//   ADAPTIVE      1: window o covers floor(o * I / O) to ceil((o + 1) * I / O); 0: K values D apart, from o * S - P
//   KH KW SH SW PH PW DH DW   unless ADAPTIVE; PH_R PW_R, the padding of the far sides
//   AVERAGE       1 for the mean, 0 for the largest
//   SUM           1 with AVERAGE for the sum
//   COUNT_PAD     1 if the padding's zeros count in a mean
//   MB CHANNELS NHWC   images, channels, the layout
//   FLAT          how work items are counted
//   INDEX         uint or ulong: holds any element's number
//   INSIDE        1 if no window reaches beyond the input
//   NOTE          1 to store the pixel of each window's largest value, an int
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
#if FLAT
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

// How many of a window's K values, D apart from `begin` on, lie between `low` and `high`.
#define COUNT(begin, k, d, low, high) \
  ((min((begin) + ((k) - 1) * (d) + 1, high) - (begin) + (d) - 1) / (d) - (max((low) - (begin), 0) + (d) - 1) / (d))

// How many rows, columns and values of its window a mean is over.
#if SUM
#define VALUES(o, i, n, k, s, p, d, r) 1
#elif ADAPTIVE
#define VALUES(o, i, n, k, s, p, d, r) (END(o, i, n, k, s, p, d) - BEGIN(o, i, n, k, s, p))
#elif COUNT_PAD
#define VALUES(o, i, n, k, s, p, d, r) COUNT(BEGIN(o, i, n, k, s, p), k, d, -p, i + r)
#else
#define VALUES(o, i, n, k, s, p, d, r) COUNT(BEGIN(o, i, n, k, s, p), k, d, 0, i)
#endif
inline int rows_of(int oy) { return VALUES(oy, IH, OH, KH, SH, PH, DH, PH_R); }
inline int columns_of(int ox) { return VALUES(ox, IW, OW, KW, SW, PW, DW, PW_R); }
inline ACC count_of(int oy, int ox) { return (ACC)(rows_of(oy) * columns_of(ox)); }

// Runs over the window's values, each at pixel `at`. `within` says whether it lies inside the
// input. Windows of one size run a constant number of times, and compare only where a window can leave the input.
//
// Where neighbours of one vector differ in what lies inside, nothing is skipped: the nearest pixel is read instead, and
// `within` keeps it out. A read that is skipped is a masked one to a compiler, and Intel's reads some of those
// from another row (docs/plugins/kernels.md).
#if ADAPTIVE
#define WINDOW(body)                                                                            \
  const int bottom = END(oy, IH, OH, KH, SH, PH, DH), right = END(ox, IW, OW, KW, SW, PW, DW);  \
  for (int iy = BEGIN(oy, IH, OH, KH, SH, PH); iy < bottom; ++iy)                               \
    for (int ix = BEGIN(ox, IW, OW, KW, SW, PW); ix < right; ++ix) {                            \
      const int at = iy * IW + ix, within = 1;                                                  \
      body                                                                                      \
    }
#else
#if INSIDE || FLAT || NHWC
#define NEAREST iy * IW + ix
#define SKIP if (!within) continue;
#else
#define NEAREST clamp(iy, 0, IH - 1) * IW + clamp(ix, 0, IW - 1)
#define SKIP
#endif
#define WINDOW(body)                                                                            \
  _Pragma("unroll") for (int ky = 0; ky < KH; ++ky)                                             \
    _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {                                         \
      const int iy = oy * SH - PH + ky * DH, ix = ox * SW - PW + kx * DW;                       \
      const int within = INSIDE || (iy >= 0 && iy < IH && ix >= 0 && ix < IW);                  \
      SKIP                                                                                      \
      const int at = NEAREST;                                                                   \
      body                                                                                      \
    }
#endif
