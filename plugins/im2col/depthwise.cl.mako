// y[image, g M + m, o U + f] = epilogue(sum over taps t of w[g M + m, t] x[image, g, o S + origin + t D]): one input channel
// a group, NCHW on a CPU; of a strided data gradient all phases f in one launch. A work item copies one zero-padded
// plane of x at a time into its part of the workspace, the columns distributed by their rest modulo the stride S, so
// that every tap is a plain vector load without a test; a row's phases are summed side by side and distributed in turn
// as they are stored.
//
% if gradient:
// The weights' gradient: w[g M + m, t] = sum over image, o of y[image, g M + m, o] x[image, g, o S + origin + t D].
//
% endif
// X? Y? S? U?  sizes of the source and of the target, step from pixel to pixel in each of them; G groups, TAPS of the kernel
// M            output channels per group
// ITEMS        work items; each takes every ITEMS-th plane
// EZ EY        rows of a padded plane along d and h; PITCH: elements of one phase of a row
// ZERO_Z ZERO_Y  positions of the padded plane's first element in x
% if not gradient:
#include <convdispatch/first_lanes.cl>
% endif
#include <convdispatch/lanes.cl>
% if gradient:
// Loads LANES elements from p on, of which n exist; the others are zeros.
inline V load_first(global const REAL *p, int n) {
  if (n >= LANES) return LOADV(p);
  union { V v; ACC s[LANES]; } u;
  u.v = 0;
  for (int j = 0; j < n; ++j) u.s[j] = LOAD(p, j);
  return u.v;
}
% endif

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
<% first = zero_x + phase; low = min(pitch, max(0, -(first // step))); high = max(low, min(pitch, -((first - width) // step))) %>\
        for (int j = 0; j < ${low}; ++j) to[${phase * pitch} + j] = 0;
        for (int j = ${low}; j < ${high}; ++j) to[${phase * pitch} + j] = LOAD(row, j * SW + ${first});
        for (int j = ${high}; j < PITCH; ++j) to[${phase * pitch} + j] = 0;
      }
% endfor
    }
}

% if gradient:
<% offsets = [offset for _, offset in rows[0].phases[0]] %>\
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
% for t in range(len(offsets)):
    V sum${t} = 0;
% endfor
    for (int image = 0; image < IMAGES; ++image) {
      fill(x + ((long)image * G + channel / M) * (XD * XH * XW), plane);
      global const REAL *dy = y + ((long)image * (G * M) + channel) * (YD * YH * YW);
      for (int oz = 0; oz < YD; ++oz)
        for (int oy = 0; oy < YH; ++oy, dy += YW) {
          global const ACC *from = plane + (oz * SD * EY + oy * SH) * (SW * PITCH);
          int ox = 0;
          for (; ox + LANES <= YW; ox += LANES) {
            const V d = load_first(dy + ox, LANES);
% for t, at in enumerate(offsets):
            sum${t} = d * LOADW(from + ox + ${at}) + sum${t};
% endfor
          }
          if (ox < YW) {  // other taps read what lies beyond, which may not be finite
            const V d = load_first(dy + ox, YW - ox), lane = (V)(${", ".join(map(str, range(lanes)))});
% for t, at in enumerate(offsets):
            sum${t} = d * select((V)(0), LOADW(from + ox + ${at}), lane < (V)(YW - ox)) + sum${t};
% endfor
          }
        }
    }
% for t in range(len(offsets)):
    put_sum(w, (long)channel * TAPS + ${t}, sum${t});
% endfor
  }
}
% else:
<% once = "ONCE " if out_step > 1 or len(rows) > 1 else "" %>\
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
% for t in sorted({tap for row in rows for phase in row.phases for tap, _ in phase}):
      const ACC w${t} = LOAD(own, ${t});
% endfor
      const long to = (long)(job * (long)M + m) * (YD * YH * YW);
% for row in rows:
      ${once}for (int oz = 0; oz < ${row.rows[0]}; ++oz)
        ${once}for (int oy = 0; oy < ${row.rows[1]}; ++oy) {
          global const ACC *from = plane + (oz * SD * EY + oy * SH) * (SW * PITCH);
          const long at = to + ((long)(oz * UD + ${row.first[0]}) * YH + oy * UH + ${row.first[1]}) * YW;
          ${once}for (int ox = 0; ox < ${columns}; ox += LANES) {
            union { V v[UW]; ACC s[UW * LANES]; } u;
% for f in range(out_step):
            {
              V sum = 0;
% for tap, offset in (row.phases[f] if f < len(row.phases) else ()):
              sum = w${tap} * LOADW(from + ox + ${offset}) + sum;
% endfor
              u.v[${f}] = sum;
            }
% endfor
            const int n = min(UW * LANES, YW - ox * UW);
% if out_step == 1:
            put_first(OUT_ARGS, at + ox, u.v[0], n, b);
% elif out_step == 2:
            put_pairs(OUT_ARGS, at + ox * UW, u.v[0], u.v[1], n, b);
% else:
            ONCE for (int j = 0; j < n; ++j) put_one(OUT_ARGS, at + ox * UW + j, u.s[j % UW * LANES + j / UW], b);
% endif
          }
        }
% endfor
    }
  }
}
% endif
