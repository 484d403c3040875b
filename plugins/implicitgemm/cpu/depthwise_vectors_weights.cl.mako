## dw[g, tap] = sum over (image, pixel) of dy[image, g, pixel] x[image, g, pixel * step + tap * spread - pad]
//
// NCHW, nothing copied: a vector is pixels, a sum a vector a tap, whose lanes are added when a channel's pixels all are
// in it. What a tile reads of x and dy are vectors at literal offsets, whose lanes are moved in registers
// (depthwise_vectors.cl.mako).
//
// LANES, V  elements of a vector of sums, its type; KEPT: integers of its size
// ITEMS     work items; the G channels are divided among them in contiguous runs; IMAGES
// XP, YP    elements of a plane of x, of dy; TAPS of a kernel
// ADD       1: the sums are added to dw
#include <convdispatch/lanes.cl>
<%
def joined(vectors):
    """Statements, and the name of one vector whose lane i is the sum over the lanes of vectors[i]; None is 0."""
    lines, level = [], 0
    while len(vectors) > 1:
        pairs = list(zip(vectors[::2], vectors[1::2]))
        vectors = [f"j{level}_{i}" if a else None for i, (a, _) in enumerate(pairs)]
        lines += [
            f"const V {to} = (V)({a}.even, {b or zero}.even) + (V)({a}.odd, {b or zero}.odd);"
            for to, (a, b) in zip(vectors, pairs) if to
        ]
        level += 1
    return lines, vectors[0]
zero = "((V)(0))"
%>
% for (tile, windows, gradients), function in tiles.items():
<% taps = sorted({t for _, serves in tile.reads for _, t in serves}) %>\
inline void ${function}(global const REAL *restrict xs, global const REAL *restrict ys, V *sums) {
% for window in tile.windows:
  const V ${name(window)} = LOADV(xs + (${window}));
% endfor
% for window in windows:
  const V ${name(window, "y")} = LOADV(ys + (${window}));
% endfor
% for j, read in enumerate(gradients):
<% steps, value = gather_lanes(read, "y") %>\
  V d${j};
  {
% for step in steps:
    ${step}
% endfor
    d${j} = ${value};
  }
% endfor
% for read, serves in tile.reads:
<% steps, value = gather_lanes(read) %>\
  {
% for step in steps:
    ${step}
% endfor
% for j, t in serves:
    sums[${t}] = d${j} * ${value} + sums[${t}];
% endfor
  }
% endfor
}
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gradient(global const REAL *restrict x, global const REAL *restrict y, global REAL *restrict w) {
  const int item = get_global_id(0);
  const int last = (int)((long)(item + 1) * G / ITEMS);
  ONCE for (int g = (int)((long)item * G / ITEMS); g < last; ++g) {
    ACC totals[${-(-taps_all // lanes) * lanes}];
% for taps, runs in parts:
    {
      V sums[TAPS];
% for t in taps:
      sums[${t}] = 0;
% endfor
      ONCE for (int image = 0; image < IMAGES; ++image) {
        global const REAL *xp = x + ((long)image * G + g) * XP, *yp = y + ((long)image * G + g) * YP;
% for run in runs:
% if run.apart:
        ONCE for (int row = ${run.first}; row <= ${run.last}; row += ${run.apart}) {
% else:
        {
          const int row = ${run.first};
% endif
          global const REAL *xs = xp + row * ${down}, *ys = yp + row * ${width};
% for function, first, last, apart in run.calls:
% if apart:
          ONCE for (int column = ${first}; column <= ${last}; column += ${apart})
            ${function}(xs + column * ${across}, ys + column, sums);
% else:
          ${function}(xs + ${first * across}, ys + ${first}, sums);
% endif
% endfor
        }
% endfor
      }
% for first in range(0, len(taps), lanes):
<%
some = [f"sums[{t}]" for t in taps[first : first + lanes]]
lines, value = joined(some + [None] * (lanes - len(some)))
%>\
      {
        union { V v; ACC s[LANES]; } u;
% for line in lines:
        ${line}
% endfor
        u.v = ${value};
% for lane in range(len(some)):
        totals[${taps[first + lane]}] = u.s[${lane}];
% endfor
      }
% endfor
    }
% endfor
    ONCE for (int t = 0; t < TAPS; ++t) {
      ACC v = totals[t];
      if (ADD) v += LOAD(w, (long)g * TAPS + t);
      STORE(w, (long)g * TAPS + t, v);
    }
  }
}
