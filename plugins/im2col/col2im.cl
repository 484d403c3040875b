// x[image, c, iz, iy, ix] = epilogue(sum over taps of columns[(c, tap), (image, oz, oy, ox)]), over the pixels with
// oz SD + tz DD - PD = iz and likewise along y and x. Every element gathers its own sum: no atomics.
//
// NHWC      columns are [pixel][group][tap][channel]; otherwise [group][channel][tap][pixel]
// ROWS, TILE a work item sums rows of x, NHWC TILE elements at a time; otherwise one element
// LANES, V, KEPT, IDS  elements of a vector of sums, its type, that of integers of its size, 0 to LANES - 1
// FRONT     elements of the workspace before the columns
// rows      rows of a CPU work item
// image0, images, group0, groups, channel0, channels: the piece of x; channels are counted within a group
#include <convdispatch/output.cl>
typedef V16 __attribute__((aligned(ACCSIZE))) run16;
#define PLACES ((long)YD * YH * YW)
#define PARAMS global const ACC *restrict columns, OUT_PARAMS, \
    int rows, int image0, int images, int group0, int groups, int channel0, int channels

// The pixel whose tap reads position i, or -1.
inline int place(int i, int tap, int step, int spread, int pad, int places) {
  const int from = i + pad - tap * spread;
  const int o = from / step;
  return from >= 0 && o < places && o * step == from ? o : -1;
}
// Rows of taps that read row iy of plane iz, and the row oy of plane oz of pixels that do.
#define TAP_ROWS \
  TURN for (int tz = 0, oz; tz < TD; ++tz) \
    if ((oz = place(iz, tz, SD, DD, PD, YD)) >= 0) \
      TURN for (int ty = 0, oy; ty < TH; ++ty) \
        if ((oy = place(iy, ty, SH, DH, PH, YH)) >= 0)

#if !ROWS
#define TURN
kernel void gather(PARAMS) {
  const long id = get_global_id(0);
  const int pieces = groups * channels;
  columns += FRONT;
#if NHWC
  const int piece = id % pieces;
  const long pixel = id / pieces;
  const int image = pixel / (XD * XH * XW);
#else
  const long pixel = id;
  const int piece = id / (XD * XH * XW) % pieces, image = id / ((long)(XD * XH * XW) * pieces);
#endif
  if (image >= images) return;
  const int ix = pixel % XW, iy = pixel / XW % XH, iz = pixel / (XW * XH) % XD;
  const int group = piece / channels, c = piece % channels;
  ACC sum = 0;
  TAP_ROWS
    for (int tx = 0; tx < TW; ++tx) {
      const int ox = place(ix, tx, SW, DW, PW, YW);
      if (ox < 0) continue;
      const long o = image * PLACES + ((long)oz * YH + oy) * YW + ox;
      const int tap = (tz * TH + ty) * TW + tx;
#if NHWC
      sum += columns[((o * groups + group) * TAPS + tap) * channels + c];
#else
      sum += columns[((long)piece * TAPS + tap) * (images * PLACES) + o];
#endif
    }
  const int channel = (group0 + group) * CG + channel0 + c;
#if NHWC
  const long at = ((((long)(image0 + image) * XD + iz) * XH + iy) * XW + ix) * C + channel;
#else
  const long at = ((((long)(image0 + image) * C + channel) * XD + iz) * XH + iy) * XW + ix;
#endif
  put(OUT_ARGS, sum, at, channel);
}
#elif NHWC
#define TURN
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gather(PARAMS) {
  const int y0 = get_global_id(0) * rows, y1 = min(XH, y0 + rows);
  const int iz = get_global_id(1) % XD, image = get_global_id(1) / XD;
  columns += FRONT;
  ACC sum[TILE];
  for (int iy = y0; iy < y1; ++iy)
    for (int ix = 0; ix < XW; ++ix)
      for (int group = 0; group < groups; ++group)
        for (int c = 0; c < channels; c += TILE) {
          const int n = min(TILE, channels - c);
          for (int j = 0; j < n; ++j) sum[j] = 0;
          TAP_ROWS
            for (int tx = 0; tx < TW; ++tx) {
              const int ox = place(ix, tx, SW, DW, PW, YW);
              if (ox < 0) continue;
              const long o = image * PLACES + ((long)oz * YH + oy) * YW + ox;
              global const ACC *from = columns + ((o * groups + group) * TAPS + (tz * TH + ty) * TW + tx) * channels + c;
              int j = 0;
              for (; j + 16 <= n; j += 16) *(run16 *)(sum + j) += *(global const run16 *)(from + j);
              for (; j < n; ++j) sum[j] += from[j];
            }
          const int channel = (group0 + group) * CG + channel0 + c;
          const long at = ((((long)(image0 + image) * XD + iz) * XH + iy) * XW + ix) * C + channel;
          for (int j = 0; j < n; ++j) put(OUT_ARGS, sum[j], at + j, channel + j);
        }
}
#else
#include <convdispatch/first_lanes.cl>
#define TURN ONCE
// Places from ox on of a row of columns, 0 beyond its ends. What is read there is the workspace's.
inline V row_of(global const ACC *restrict from, int ox) {
  const KEPT at = ox + (KEPT)(IDS);
  return select((V)(0), LOADW(from + clamp(ox, -LANES, YW)), at >= 0 & at < YW);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gather(PARAMS) {
  const int y0 = get_global_id(0) * rows, y1 = min(XH, y0 + rows), piece = get_global_id(2);
  const int iz = get_global_id(1) % XD, image = get_global_id(1) / XD;
  const int channel = (group0 + piece / channels) * CG + channel0 + piece % channels;
  columns += FRONT + ((long)piece * TAPS * images + image) * PLACES;
#if BIAS
  const ACC b = LOAD(bias, channel);
#else
  const ACC b = 0;
#endif
  ONCE for (int iy = y0; iy < y1; ++iy) {
    const long at = ((((long)(image0 + image) * C + channel) * XD + iz) * XH + iy) * XW;
    ONCE for (int ix = 0; ix < XW; ix += SW * LANES) {
      union { V v[SW]; ACC s[SW * LANES]; } u;  // of elements that are congruent modulo the stride, side by side
      for (int f = 0; f < SW; ++f) u.v[f] = 0;
      TAP_ROWS {
        global const ACC *from = columns + (long)(tz * TH + ty) * (TW * images * PLACES) + ((long)oz * YH + oy) * YW;
        for (int tx = 0; tx < TW; ++tx, from += images * PLACES) {
          const int to = tx * DW - PW, f = (to % SW + SW) % SW;
          u.v[f] += row_of(from, ix / SW + (f - to) / SW);
        }
      }
      const int n = min(SW * LANES, XW - ix);
#if SW == 1
      put_first(OUT_ARGS, at + ix, u.v[0], n, b);
#elif SW == 2
      put_pairs(OUT_ARGS, at + ix, u.v[0], u.v[1], n, b);
#else
      ONCE for (int j = 0; j < n; ++j) put_one(OUT_ARGS, at + ix + j, u.s[j % SW * LANES + j / SW], b);
#endif
    }
  }
}
#endif
