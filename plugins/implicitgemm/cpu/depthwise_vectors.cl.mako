## target[image, g, pixel] = epilogue(sum over tap of w[g, tap] source[image, g, pixel * step + tap * spread - pad])
//
// NCHW, nothing copied or packed: a work item takes planes, and of each a tile of vectors of pixels at a time. All that
// a tile reads are vectors at literal offsets from its first pixel; where a vector needs its lanes in another order, at a row's ends,
// with a stride or where it holds several rows, they are moved in registers.
//
// LANES, V  elements of a vector of sums, its type; KEPT: integers of its size
// ITEMS     work items; PLANES are divided among them in contiguous runs
// XP, YP    elements of a plane of the source, of the target; WG: of a kernel; G channels
#include <convdispatch/first_lanes.cl>

% for tile, function in tiles.items():
inline void ${function}(global const REAL *restrict xs, const ACC *ks, OUT_PARAMS, long p, ACC b) {
% for window in tile.windows:
  const V ${name(window)} = LOADV(xs + (${window}));
% endfor
% for j in range(len(tile.stores)):
  V a${j} = 0;
% endfor
% for read, serves in tile.reads:
<% steps, value = gather_lanes(read) %>\
  {
% for step in steps:
    ${step}
% endfor
% for j, t in serves:
    a${j} = ks[${t}] * ${value} + a${j};
% endfor
  }
% endfor
% for j, store in enumerate(tile.stores):
% if store.first:
  {
    union { V v; ACC s[LANES]; } u;
    u.v = a${j};
    ONCE for (int lane = ${store.first}; lane < ${store.used}; ++lane) put_one(OUT_ARGS, p + ${store.at} + lane, u.s[lane], b);
  }
% elif store.whole:
  put_vector(OUT_ARGS, p + ${store.at}, a${j}, b);
% else:
  put_first(OUT_ARGS, p + ${store.at}, a${j}, ${store.used}, b);
% endif
% endfor
}
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void depthwise(global const REAL *restrict x, global const REAL *restrict w, OUT_PARAMS) {
  const int item = get_global_id(0);
  const int last = (int)((long)(item + 1) * PLANES / ITEMS);
  ONCE for (int plane = (int)((long)item * PLANES / ITEMS); plane < last; ++plane) {
    const int g = plane % G;
    global const REAL *xp = x + (long)plane * XP, *ws = w + g * WG;
    const long yp = (long)plane * YP;
    const ACC ks[${len(position)}] = {${", ".join(f"LOAD(ws, {at})" for at in position)}};
    const ACC b = ${"LOAD(bias, g)" if bias else "0"};
% for run in runs:
% if run.apart:
    ONCE for (int row = ${run.first}; row <= ${run.last}; row += ${run.apart}) {
% else:
    {
      const int row = ${run.first};
% endif
      global const REAL *xs = xp + row * ${down};
      const long p = yp + row * ${width};
% for function, first, last, apart in run.calls:
% if apart:
      ONCE for (int column = ${first}; column <= ${last}; column += ${apart})
        ${function}(xs + column * ${across}, ks, OUT_ARGS, p + column, b);
% else:
      ${function}(xs + ${first * across}, ks, OUT_ARGS, p + ${first}, b);
% endif
% endfor
    }
% endfor
  }
}
