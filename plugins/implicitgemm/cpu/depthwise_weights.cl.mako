## dw[g, tap] = sum over (image, pixel) of dy[image, g, pixel] x[image, g, pixel * step + tap * spread - pad]
//
// NHWC. A work item sums one part of the bands for some channels. The band's source rows are in its slot, dy behind
// them in the same order of pixels; a vector of LANES channels a tap stays in registers over a band. "reduce" adds the
// parts, [part][tap][CT].
//
// LANES, V  elements of a vector of sums, its type
// R         rows of a band; ROWS source rows of WIDTH columns belong to it
// PARTS     parts of the sum, each over its share of BANDS_ALL bands
// CHUNKS    work items that share the channels; CB channels at a time
// ADD       1: the sums are added to dw
#include <convdispatch/runs.cl>
#define ROWS ((R - 1) * SH + (TH - 1) * DH + 1)
#define WIDTH ((YW - 1) * SW + (TW - 1) * DW + 1)
#define BANDS ((YH + R - 1) / R)
#define BANDS_ALL (IMAGES * YD * BANDS)
#define TAPS (TD * TH * TW)

// slot = the band's source rows of channels c0 to c0 + channels - 1, zeros around them: [tz][row][column][CB].
inline void stage(global ACC *restrict slot, global const REAL *restrict x, int image, int c0, int channels, int z,
                  int y0, int pd, int ph, int pw) {
  const int begin = clamp(pw, 0, WIDTH), end = clamp(XW + pw, begin, WIDTH);
  global ACC *to = slot;
  ONCE for (int tz = 0; tz < TD; ++tz)
    ONCE for (int row = 0; row < ROWS; ++row) {
      const int iz = z * SD + tz * DD - pd, iy = y0 * SH + row - ph;
      const int inside = (uint)iz < XD && (uint)iy < XH;
      const int first = inside ? begin : WIDTH, stop = inside ? end : WIDTH;
      global const REAL *from = x + ((((long)image * XD + iz) * XH + iy) * XW + first - pw) * G + c0;
      zero_run(to, first * CB);
      to += first * CB;
      if (CB == G) {
        copy_run(to, from, (stop - first) * CB);
        to += (stop - first) * CB;
      } else {
        ONCE for (int i = first; i < stop; ++i, to += CB, from += G) copy_run(to, from, channels);
      }
      zero_run(to, (WIDTH - stop) * CB);
      to += (WIDTH - stop) * CB;
    }
}

<% rows = tile_rows %>\
// Taps of ${rows} rows of the kernel, for all pixels of a band; LANES channels.
inline void tile_all(global const ACC *restrict xs, global const ACC *restrict gs, global ACC *restrict ts, int rows, int first) {
<% taps = rows * taps_w %>\
% for t in range(taps):
  V a${t} = 0;
% endfor
  if (!first) {
% for t in range(taps):
    a${t} = LOADW(ts + ${t} * CT);
% endfor
  }
  ONCE for (int row = 0; row < rows; ++row) {
    global const ACC *xt = xs + row * SH * (WIDTH * CB);
    ONCE for (int column = 0; column < YW; ++column, xt += SW * CB, gs += CB) {
      const V d = LOADW(gs);
% for t in range(taps):
      a${t} = d * LOADW(xt + ${t // taps_w} * DH * (WIDTH * CB) + ${t % taps_w} * DW * CB) + a${t};
% endfor
    }
  }
% for t in range(taps):
  STOREW(ts + ${t} * CT, a${t});
% endfor
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void weights(global const REAL *restrict x, global const REAL *restrict y, global ACC *workspace, long slots_off,
             int pd, int ph, int pw) {
  const int part = get_global_id(0), chunk = get_global_id(1);
  const int begin = (int)((long)part * BANDS_ALL / PARTS), end = (int)((long)(part + 1) * BANDS_ALL / PARTS);
  global ACC *slot = workspace + slots_off + (long)(part * CHUNKS + chunk) * SLOT;
  global ACC *gradient = slot + SLOT_X;
  global ACC *sums = workspace + (long)part * (TAPS * CT);
  const int c0 = chunk * CB, channels = min(CB, G - c0);
  ONCE for (int band = begin; band < end; ++band) {
    const int y0 = band % BANDS * R, z = band / BANDS % YD, image = band / (BANDS * YD), rows = min(R, YH - y0);
    stage(slot, x, image, c0, channels, z, y0, pd, ph, pw);
    global const REAL *from = y + (((long)image * YD + z) * YH + y0) * YW * G + c0;
    if (CB == G) copy_run(gradient, from, rows * YW * CB);
    else ONCE for (int q = 0; q < rows * YW; ++q) copy_run(gradient + q * CB, from + (long)q * G, channels);
    ONCE for (int c = 0; c < channels; c += LANES)
      ONCE for (int t = 0; t < TD * TH; t += ${tile_rows})
        tile_all(slot + (t / TH * ROWS + t % TH * DH) * (WIDTH * CB) + c, gradient + c,
                 sums + (long)t * TW * CT + c0 + c, rows, band == begin);
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void reduce(global const REAL *restrict x, global const REAL *restrict y, global const ACC *restrict sums,
            global REAL *restrict w, int pd, int ph, int pw) {
  const int g = get_global_id(0);
  ONCE for (int t = 0; t < TAPS; ++t) {
    ACC v = sums[t * CT + g];
    ONCE for (int part = 1; part < PARTS; ++part) v += sums[(part * TAPS + t) * CT + g];
    if (ADD) v += LOAD(w, g * TAPS + t);
    STORE(w, g * TAPS + t, v);
  }
}
