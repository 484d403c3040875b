// y[image, g M + m, o] = epilogue(sum over taps t of w[g M + m, t] x[image, g, o S + t D - P]): one input channel a
// group, NCHW on a CPU. A work item copies one zero-padded plane of x at a time into its part of the workspace, the
// columns distributed by their rest modulo the stride, so that every tap is a plain vector load without a test.
//
% if gradient:
// The weights' gradient: w[g M + m, t] = sum over image, o of y[image, g M + m, o] x[image, g, o S + t D - P].
//
% endif
// M            output channels per group
// ITEMS        work items; each takes every ITEMS-th plane
// EZ EY        rows of a padded plane along d and h; PITCH: elements of one phase of a row
// ZERO_Z ZERO_Y ZERO_X  positions of the padded plane's first element in x
// W_STEP       elements from one output channel's weights to the next one's; TAP(t): index of a tap among them
% if not gradient:
#include <convdispatch/first_lanes.cl>
% endif
// Loads LANES elements from p on, of which n exist; the others are zeros.
#include <convdispatch/lanes.cl>
inline V load_first(global const REAL *p, int n) {
  if (n >= LANES) return LOADV(p);
  union { V v; ACC s[LANES]; } u;
  u.v = 0;
  for (int j = 0; j < n; ++j) u.s[j] = LOAD(p, j);
  return u.v;
}

inline void fill(global const REAL *restrict x, global ACC *restrict plane) {
  for (int ez = 0; ez < EZ; ++ez)
    for (int ey = 0; ey < EY; ++ey) {
      const int iz = ez + ZERO_Z, iy = ey + ZERO_Y;
      global ACC *to = plane + (ez * EY + ey) * (SW * PITCH);
      if ((uint)iz >= XD || (uint)iy >= XH) {
        for (int j = 0; j < SW * PITCH; ++j) to[j] = 0;
        continue;
      }
      global const REAL *row = x + ((long)iz * XH + iy) * XW;
% for phase in range(step):
      {
        // Elements low to high - 1 of this phase are in the row, the others are padding.
<% first = zero_x + phase; low = max(0, -(first // step)); high = max(low, min(pitch, -((first - width) // step))) %>\
        for (int j = 0; j < ${low}; ++j) to[${phase * pitch} + j] = 0;
        for (int j = ${low}; j < ${high}; ++j) to[${phase * pitch} + j] = LOAD(row, j * SW + ${first});
        for (int j = ${high}; j < PITCH; ++j) to[${phase * pitch} + j] = 0;
      }
% endfor
    }
}

% if gradient:
inline void put_sum(global REAL *restrict w, long at, V sum) {
  union { V v; ACC s[LANES]; } u;
  u.v = sum;
  ACC v = 0;
  for (int j = 0; j < LANES; ++j) v += u.s[j];
#if ACCUMULATE
  v += LOAD(w, at);
#endif
  STORE(w, at, v);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gradient(global const REAL *restrict x, global const REAL *restrict y, global REAL *restrict w,
    global ACC *restrict workspace) {
  global ACC *plane = workspace + (long)get_global_id(0) * (EZ * EY * SW * PITCH);
  for (int channel = get_global_id(0); channel < G * M; channel += ITEMS) {
% for t in range(volume):
    V sum${t} = 0;
% endfor
    for (int image = 0; image < IMAGES; ++image) {
      fill(x + ((long)image * C + channel / M) * (XD * XH * XW), plane);
      global const REAL *dy = y + ((long)image * (G * M) + channel) * (YD * YH * YW);
      for (int oz = 0; oz < YD; ++oz)
        for (int oy = 0; oy < YH; ++oy, dy += YW) {
          global const ACC *from = plane + (oz * SD * EY + oy * SH) * (SW * PITCH);
          int ox = 0;
          for (; ox + LANES <= YW; ox += LANES) {
            const V d = load_first(dy + ox, LANES);
% for t, at in enumerate(offsets):
            sum${t} = d * *(global const vec *)(from + ox + ${at}) + sum${t};
% endfor
          }
          if (ox < YW) {  // other taps read what lies beyond, which may not be finite
            const V d = load_first(dy + ox, YW - ox), lane = (V)(${", ".join(map(str, range(lanes)))});
% for t, at in enumerate(offsets):
            sum${t} = d * select((V)(0), *(global const vec *)(from + ox + ${at}), lane < (V)(YW - ox)) + sum${t};
% endfor
          }
        }
    }
% for t in range(volume):
    put_sum(w, (long)channel * TAPS + ${t}, sum${t});
% endfor
  }
}
% else:
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const REAL *restrict w, OUT_PARAMS,
    global ACC *restrict workspace) {
  global ACC *plane = workspace + (long)get_global_id(0) * (EZ * EY * SW * PITCH);
  for (int job = get_global_id(0); job < IMAGES * G; job += ITEMS) {
    const int g = job % G;
    fill(x + (long)job * (XD * XH * XW), plane);
    for (int m = 0; m < M; ++m) {
      const int channel = g * M + m;
      const ACC b = ${"LOAD(bias, channel)" if bias else "0"};
      global const REAL *own = w + (long)channel * TAPS;
% for t in range(volume):
      const ACC w${t} = LOAD(own, ${t});
% endfor
      const long to = (long)(job * (long)M + m) * (YD * YH * YW);
      for (int oz = 0; oz < YD; ++oz)
        for (int oy = 0; oy < YH; ++oy) {
          global const ACC *from = plane + (oz * SD * EY + oy * SH) * (SW * PITCH);
          for (int ox = 0; ox < YW; ox += LANES) {
            V sum = 0;
% for t, at in enumerate(offsets):
            sum = w${t} * *(global const vec *)(from + ox + ${at}) + sum;
% endfor
            put_first(OUT_ARGS, to + ((long)oz * YH + oy) * YW + ox, sum, min(LANES, YW - ox), b);
          }
        }
    }
  }
}
% endif
