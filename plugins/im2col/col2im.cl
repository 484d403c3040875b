// x[image, c, iz, iy, ix] = epilogue(sum over taps of columns[(c, tap), (image, oz, oy, ox)]), over the places with
// oz SD + tz DD - PD = iz and likewise along y and x. Every element gathers its own sum: no atomics.
//
// NHWC      columns are [place][group][tap][channel]; otherwise [group][channel][tap][place]
// CPU, TILE a work item sums rows of x, TILE elements at a time; otherwise one element
// rows      rows of a CPU work item
// image0, images, group0, groups, channel0, channels: the piece of x; channels are counted within a group
#include <convdispatch/output.cl>
typedef V16 __attribute__((aligned(ACCSIZE))) run16;
#define PLACES ((long)YD * YH * YW)
#define PARAMS global const ACC *restrict columns, OUT_PARAMS, \
    int rows, int image0, int images, int group0, int groups, int channel0, int channels

// The place whose tap reads position i, or -1.
inline int place(int i, int tap, int step, int spread, int pad, int places) {
  const int from = i + pad - tap * spread;
  const int o = from / step;
  return from >= 0 && o < places && o * step == from ? o : -1;
}

#if !CPU
kernel void gather(PARAMS) {
  const long id = get_global_id(0);
  const int pieces = groups * channels;
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
  for (int tz = 0; tz < TD; ++tz) {
    const int oz = place(iz, tz, SD, DD, PD, YD);
    if (oz < 0) continue;
    for (int ty = 0; ty < TH; ++ty) {
      const int oy = place(iy, ty, SH, DH, PH, YH);
      if (oy < 0) continue;
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
    }
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
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gather(PARAMS) {
  const int y0 = get_global_id(0) * rows, y1 = min(XH, y0 + rows);
  const int iz = get_global_id(1) % XD, image = get_global_id(1) / XD;
  ACC sum[TILE];
  for (int iy = y0; iy < y1; ++iy)
    for (int ix = 0; ix < XW; ++ix)
      for (int group = 0; group < groups; ++group)
        for (int c = 0; c < channels; c += TILE) {
          const int n = min(TILE, channels - c);
          for (int j = 0; j < n; ++j) sum[j] = 0;
          for (int tz = 0; tz < TD; ++tz) {
            const int oz = place(iz, tz, SD, DD, PD, YD);
            if (oz < 0) continue;
            for (int ty = 0; ty < TH; ++ty) {
              const int oy = place(iy, ty, SH, DH, PH, YH);
              if (oy < 0) continue;
              for (int tx = 0; tx < TW; ++tx) {
                const int ox = place(ix, tx, SW, DW, PW, YW);
                if (ox < 0) continue;
                const long o = image * PLACES + ((long)oz * YH + oy) * YW + ox;
                global const ACC *from = columns
                    + ((o * groups + group) * TAPS + (tz * TH + ty) * TW + tx) * channels + c;
                int j = 0;
                for (; j + 16 <= n; j += 16) *(run16 *)(sum + j) += *(global const run16 *)(from + j);
                for (; j < n; ++j) sum[j] += from[j];
              }
            }
          }
          const int channel = (group0 + group) * CG + channel0 + c;
          const long at = ((((long)(image0 + image) * XD + iz) * XH + iy) * XW + ix) * C + channel;
          for (int j = 0; j < n; ++j) put(OUT_ARGS, sum[j], at + j, channel + j);
        }
}
#else
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gather(PARAMS) {
  const int y0 = get_global_id(0) * rows, y1 = min(XH, y0 + rows), piece = get_global_id(2);
  const int iz = get_global_id(1) % XD, image = get_global_id(1) / XD;
  const int channel = (group0 + piece / channels) * CG + channel0 + piece % channels;
  ACC sum[TILE];
  for (int iy = y0; iy < y1; ++iy)
    for (int x0 = 0; x0 < XW; x0 += TILE) {
      const int n = min(TILE, XW - x0);
      for (int j = 0; j < n; ++j) sum[j] = 0;
      for (int tz = 0; tz < TD; ++tz) {
        const int oz = place(iz, tz, SD, DD, PD, YD);
        if (oz < 0) continue;
        for (int ty = 0; ty < TH; ++ty) {
          const int oy = place(iy, ty, SH, DH, PH, YH);
          if (oy < 0) continue;
          for (int tx = 0; tx < TW; ++tx) {
            global const ACC *from = columns + ((long)piece * TAPS + (tz * TH + ty) * TW + tx) * (images * PLACES)
                + image * PLACES + ((long)oz * YH + oy) * YW;
            // Places low to high - 1 reach this tile, at ox SW + to.
            const int to = tx * DW - PW - x0;
            const int low = to < 0 ? (-to + SW - 1) / SW : 0;
            const int high = min(YW, n <= to ? 0 : (n - to + SW - 1) / SW);
            int ox = low;
#if SW == 1
            for (; ox + 16 <= high; ox += 16) *(run16 *)(sum + ox + to) += *(global const run16 *)(from + ox);
#endif
            for (; ox < high; ++ox) sum[ox * SW + to] += from[ox];
          }
        }
      }
      const long at = ((((long)(image0 + image) * C + channel) * XD + iz) * XH + iy) * XW + x0;
      for (int j = 0; j < n; ++j) put(OUT_ARGS, sum[j], at + j, channel);
    }
}
#endif
