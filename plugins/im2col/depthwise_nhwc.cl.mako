// y[image, o, c] = epilogue(sum over taps t of w[c, t] x[image, o S + t D - P, c]): depthwise, NHWC on a CPU, where a
// vector is LANES neighbouring channels.
//
// ROWS     rows of y that a work item computes; XLO, XHI: pixels of a row between which no tap leaves x
// CP       channels, rounded up to vectors
#include <convdispatch/output_lanes.cl>
% if gradient:
// The weights' gradient: w[c, t] = sum over image, o of y[image, o, c] x[image, o S + t D - P, c].
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gradient(global const REAL *restrict x, global const REAL *restrict y, global REAL *restrict w) {
  const int c = get_global_id(0) * LANES, n = C - c;
% for t in range(volume):
  V sum${t} = 0;
% endfor
  for (int image = 0; image < IMAGES; ++image)
    for (int oz = 0; oz < YD; ++oz)
      for (int oy = 0; oy < YH; ++oy)
        for (int ox = 0; ox < YW; ++ox) {
          const V d = load_first(y + ((((long)image * YD + oz) * YH + oy) * YW + ox) * C + c, n);
          const int iz = oz * SD - PD, iy = oy * SH - PH, ix = ox * SW - PW;
          const int inside = ox >= XLO && ox < XHI;
% for tz, ty in pairs(range(taps[0]), range(taps[1])):
          if ((uint)(iz + ${tz} * DD) < XD && (uint)(iy + ${ty} * DH) < XH) {
            global const REAL *p = x
                + ((((long)image * XD + iz + ${tz} * DD) * XH + (iy + ${ty} * DH)) * XW + ix) * C + c;
% for tx in range(taps[2]):
            if (inside || (uint)(ix + ${tx} * DW) < XW)
              sum${(tz * taps[1] + ty) * taps[2] + tx} += d * load_first(p + ${tx} * DW * C, n);
% endfor
          }
% endfor
        }
  union { V v; ACC s[LANES]; } u;
% for t in range(volume):
  u.v = sum${t};
  for (int j = 0; j < min(n, LANES); ++j) {
    const long at = (long)(c + j) * TAPS + ${t};
#if ACCUMULATE
    u.s[j] += LOAD(w, at);
#endif
    STORE(w, at, u.s[j]);
  }
% endfor
}
% else:
// packed[tap][c] = w[c][tap], zero beyond the last channel.
kernel void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off) {
  const int c = get_global_id(0), t = get_global_id(1);
  const ACC v = LOAD(w, (long)min(c, C - 1) * TAPS + t);
  packed[packed_off + (long)t * CP + c] = c < C ? v : (ACC)0;
}

inline void put_first(OUT_PARAMS, long at, V sum, int n, int channel) {
  EPILOGUE(V, sum, load_first(bias + channel, n), load_first(residual + at, n), load_first(out + at, n))
% if plain:
  if (n >= LANES) {
    STOREV(out + at, sum);
    return;
  }
% endif
  union { V v; ACC s[LANES]; } u;
  u.v = sum;
  for (int j = 0; j < min(n, LANES); ++j) STORE(out, at + j, u.s[j]);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, OUT_PARAMS) {
  const int y0 = get_global_id(0) * ROWS, y1 = min(YH, y0 + ROWS);
  const int oz = get_global_id(1), image = get_global_id(2);
  x += (long)image * ((long)XD * XH * XW * C);
  for (int c = 0; c < C; c += LANES) {
    const int n = C - c;
% for t in range(volume):
    const V w${t} = *(global const vec *)(packed + packed_off + ${t}L * CP + c);
% endfor
    for (int oy = y0; oy < y1; ++oy) {
      const long to = ((((long)image * YD + oz) * YH + oy) * YW) * C + c;
      const int iz = oz * SD - PD, iy = oy * SH - PH;
      for (int ox = 0; ox < YW; ++ox) {
        const int ix = ox * SW - PW;
        V sum = 0;
        if (ox >= XLO && ox < XHI) {
% for tz, ty in pairs(range(taps[0]), range(taps[1])):
          if ((uint)(iz + ${tz} * DD) < XD && (uint)(iy + ${ty} * DH) < XH) {
            global const REAL *p = x + (((long)(iz + ${tz} * DD) * XH + (iy + ${ty} * DH)) * XW + ix) * C + c;
% for tx in range(taps[2]):
            sum += w${(tz * taps[1] + ty) * taps[2] + tx} * load_first(p + ${tx} * DW * C, n);
% endfor
          }
% endfor
        } else {
% for tz, ty in pairs(range(taps[0]), range(taps[1])):
          if ((uint)(iz + ${tz} * DD) < XD && (uint)(iy + ${ty} * DH) < XH) {
            global const REAL *p = x + (((long)(iz + ${tz} * DD) * XH + (iy + ${ty} * DH)) * XW + ix) * C + c;
% for tx in range(taps[2]):
            if ((uint)(ix + ${tx} * DW) < XW)
              sum += w${(tz * taps[1] + ty) * taps[2] + tx} * load_first(p + ${tx} * DW * C, n);
% endfor
          }
% endfor
        }
        put_first(OUT_ARGS, to + (long)ox * C, sum, n, c);
      }
    }
  }
}
% endif
<%! from itertools import product as pairs %>
