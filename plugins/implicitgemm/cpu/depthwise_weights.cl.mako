## dw[g, tap] = sum over (image, pixel) of dy[image, g, pixel] x[image, g, pixel * step + tap * spread - pad]
//
// A work item sums one part of the bands for some channels. The band's source rows are in its slot (planes.cl.mako), dy
// behind them in the same order of pixels; a vector a tap stays in registers over a band. NHWC: a vector is LANES
// channels. NCHW: LANES pixels counted through the rows, dy 0 at row ends, lanes added up when a channel is done.
// "reduce" adds the parts, [part][tap][CT].
//
// LANES, V  elements of a vector of sums, its type
// PARTS     parts of the sum, each over its share of BANDS_ALL bands
// CHUNKS    work items that share the channels; CB channels at a time (NHWC)
// ADD       1: the sums are added to dw
#define BANDS_ALL (IMAGES * YD * BANDS)
#define TAPS (TD * TH * TW)
#define FLAT_ALL ((FLAT + LANES - 1) / LANES * LANES)

<% rows = tile_rows %>\
// Taps of ${rows} rows of the kernel, for all pixels of a band; LANES channels or pixels.
inline void tile_all(global const ACC *restrict xs, global const ACC *restrict gs, global ACC *restrict ts, int rows, int first) {
<% taps = rows * taps_w %>\
% for t in range(taps):
  V a${t} = 0;
% endfor
  if (!first) {
% for t in range(taps):
    a${t} = LOADW(ts + ${t} * ${'CT' if inter else 'LANES'});
% endfor
  }
% if inter:
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
% else:
  const int flat = (rows - 1) * WP + YW;
  ONCE for (int q = 0; q < flat; q += LANES) {
    const V d = LOADW(gs + q);
% for t in range(taps):
<%
dy, dx = t // taps_w * spread_h, t % taps_w * spread_w
at = f"{dy % step_h * step_w + dx % step_w} * PART + {dy // step_h} * WP + {dx // step_w}"
%>\
    a${t} = d * LOADW(xs + q + ${at}) + a${t};
% endfor
  }
% for t in range(taps):
  STOREW(ts + ${t} * LANES, a${t});
% endfor
% endif
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void weights(global const REAL *restrict x, global const REAL *restrict y, global ACC *workspace, long slots_off,
             int pd, int ph, int pw) {
  const int part = get_global_id(0), chunk = get_global_id(1);
  const int begin = (int)((long)part * BANDS_ALL / PARTS), end = (int)((long)(part + 1) * BANDS_ALL / PARTS);
  global ACC *slot = workspace + slots_off + (long)(part * CHUNKS + chunk) * SLOT;
  global ACC *gradient = slot + SLOT_X;
  global ACC *sums = workspace + (long)part * (TAPS * CT);
% if inter:
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
% else:
  global ACC *lanes = gradient + GRADIENT;
  zero_run(slot, SLOT_X);  // gaps between the parts meet dy's zeros, and 0 * NaN is not 0
  const int g1 = (chunk + 1) * G / CHUNKS;
  ONCE for (int g = chunk * G / CHUNKS; g < g1; ++g) {
    ONCE for (int band = begin; band < end; ++band) {
      const int y0 = band % BANDS * R, z = band / BANDS % YD, image = band / (BANDS * YD), rows = min(R, YH - y0);
      stage(slot, x, image, g, 1, z, y0, pd, ph, pw);
      global const REAL *from = y + (((long)image * G + g) * YD + z) * ((long)YH * YW) + y0 * YW;
      ONCE for (int row = 0; row < rows; ++row) {
        copy_run(gradient + row * WP, from + row * YW, YW);
        zero_run(gradient + row * WP + YW, WP - YW);
      }
      zero_run(gradient + rows * WP, LANES);
% if tile_rows == 1:
      ONCE for (int t = 0; t < TD * TH; ++t) {
        const int dy = t % TH * DH;
        tile_all(slot + dy % SH * (SW * PART) + (t / TH * PROWS + dy / SH) * WP, gradient, lanes + t * (TW * LANES), rows, band == begin);
      }
% else:
      ONCE for (int tz = 0; tz < TD; ++tz)
        tile_all(slot + tz * PROWS * WP, gradient, lanes + tz * (TH * TW * LANES), rows, band == begin);
% endif
    }
    ONCE for (int t = 0; t < TAPS; ++t) {
      ACC sum = 0;
      ONCE for (int i = 0; i < LANES; ++i) sum += lanes[t * LANES + i];
      sums[t * CT + g] = sum;
    }
  }
% endif
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void reduce(global const REAL *restrict x, global const REAL *restrict y, global const ACC *restrict sums,
            global REAL *restrict w, int pd, int ph, int pw) {
  const int g = get_global_id(0);
  ONCE for (int t = 0; t < TAPS; ++t) {
    ACC v = sums[t * CT + g];
    ONCE for (int part = 1; part < PARTS; ++part) v += sums[(part * TAPS + t) * CT + g];
% if not inter:
    if (v * 0 != 0) v = plain_sum(x, y, g, 0, 0, t / TW, t % TW, pd, ph, pw);
% endif
    if (ADD) v += LOAD(w, g * TAPS + t);
    STORE(w, g * TAPS + t, v);
  }
}
