## y[n, pixel] = epilogue(sum over k of w[n, k] L[pixel, k]), k = (channel, tap) or (tap, channel) as w has it
//
// A product of few columns is bound by reading w once. Vectors run along k, along which both operands are contiguous in
// memory; MR rows of w by a few pixels of L are a tile, whose sums are added across their lanes at the end. L is x itself
// where each pixel's window is contiguous, or the few windows, copied by ``lower``. Elements that a last vector reads twice
// are masked in both operands, because 0 times a number that is not finite is not 0.
//
// K, LANES, V   length of a sum, elements of a vector of sums, its type; KEPT: integers of its size
// MR, PLACES    rows of a block, pixels; N  target channels per group, GROUPS of them, BLOCKS blocks in each
// PITCH, APART  elements of L from pixel to pixel, and from group to group
// ITEMS         work items; blocks are divided among them in contiguous runs
// PIXELS, NHWC  pixels of an image, whether channels are last
// X? Y? T? S? D? P?  source, pixels, taps, step, spread, pad; C source channels per group; RUN channels of a work item
#include <convdispatch/output_lanes.cl>
% if ahead:
#define AHEAD(p) __builtin_prefetch((const void *)(size_t)(p))
% endif
#if NHWC
#define AT(n, p) ((long)(p) * (N * GROUPS) + (n))
#else
#define AT(n, p) (((long)((p) / PIXELS) * (N * GROUPS) + (n)) * PIXELS + (p) % PIXELS)
#endif
<%
def picked(one, other, size, upper):
    """The lower or upper halves of the parts, of so many lanes, of two vectors."""
    starts = [(of, at + upper * size // 2) for of in (one, other) for at in range(0, lanes, size)]
    return "(V)(" + ", ".join(f"{of}.s{at + lane:x}" for of, at in starts for lane in range(size // 2)) + ")"
def added(names):
    """Statements after which lane q of the first of up to LANES vectors is the sum over the lanes of vector q."""
    lines, size = [], lanes
    while size > 1:
        pairs = [(names[q], names[min(q + 1, len(names) - 1)]) for q in range(0, len(names), 2)]
        lines += [f"{one} = {picked(one, other, size, 0)} + {picked(one, other, size, 1)};" for one, other in pairs]
        names, size = names[::2], size // 2
    return lines
def kept(value):
    return f"AS_V(AS_KEPT({value}) & (KEPT)({', '.join('0' if lane < lanes - rest else '-1' for lane in range(lanes))}))" if rest else value
%>
% if not in_place:
% if nhwc:
#include <convdispatch/runs.cl>
// Copies a row of taps of a pixel's window, in runs of channels.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void lower(global const REAL *restrict x, global ACC *restrict lowered) {
  const int p = get_global_id(0), tz = get_global_id(1) / TH, ty = get_global_id(1) % TH, g = get_global_id(2);
  const int iz = p / (YH * YW) % YD * SD + tz * DD - PD, iy = p / YW % YH * SH + ty * DH - PH, ix = p % YW * SW - PW;
  global ACC *to = lowered + g * APART + p * PITCH + get_global_id(1) * (TW * C);
  if ((uint)iz >= XD || (uint)iy >= XH) {
    zero_run(to, TW * C);
    return;
  }
  global const REAL *from = x + (((long)(p / PIXELS) * XD + iz) * XH + iy) * ((long)XW * C * GROUPS) + g * C;
  ONCE for (int tx = 0; tx < TW; ++tx, to += C) {
    const int at = ix + tx * DW;
    if ((uint)at < XW) copy_run(to, from + (long)at * (C * GROUPS), C);
    else zero_run(to, C);
  }
}
% else:
// RUN channels of an image, which fit the first-level cache, into all its pixels' windows. The offsets of a pixel's taps are the
// same in all planes; one outside is read at the nearest position.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void lower(global const REAL *restrict x, global ACC *restrict lowered) {
  const int image = get_global_id(0), c0 = get_global_id(1) * RUN, c1 = min(c0 + RUN, C), g = get_global_id(2);
  global const REAL *planes = x + (((long)image * GROUPS + g) * C + c0) * ((long)XD * XH * XW);
  ONCE for (int p = 0; p < PIXELS; ++p) {
    const int z = p / (YH * YW) * SD - PD, y = p / YW % YH * SH - PH, u = p % YW * SW - PW;
    int at[TD * TH * TW], inside[TD * TH * TW];
    ONCE for (int t = 0; t < TD * TH * TW; ++t) {
      const int iz = z + t / (TH * TW) * DD, iy = y + t / TW % TH * DH, ix = u + t % TW * DW;
      inside[t] = iz >= 0 && iz < XD && iy >= 0 && iy < XH && ix >= 0 && ix < XW;
      at[t] = (clamp(iz, 0, XD - 1) * XH + clamp(iy, 0, XH - 1)) * XW + clamp(ix, 0, XW - 1);
    }
    global const REAL *plane = planes;
    global ACC *to = lowered + g * APART + (image * PIXELS + p) * PITCH + (long)c0 * (TD * TH * TW);
    ONCE for (int c = c0; c < c1; ++c, plane += (long)XD * XH * XW, to += TD * TH * TW)
      for (int t = 0; t < TD * TH * TW; ++t) {
        const ACC v = LOAD(plane, at[t]);
        to[t] = inside[t] ? v : 0;
      }
  }
}
% endif
% endif

% for rows in heights:
% for cols in widths:
// ${rows} rows of w from ws on, target channel n, by the ${cols} pixels of L from ls on, pixel p.
__attribute__((noinline))
void tile_${rows}_${cols}(global const REAL *restrict ws, global const FROM *restrict ls, OUT_PARAMS, int n, int p) {
% for i in range(rows):
  V ${", ".join(f"a{i}_{j} = 0" for j in range(cols))};
% endfor
  ONCE for (int k = 0; k < K / LANES * LANES; k += LANES) {
% for j in range(cols):
    const V x${j} = READ(ls + (k + ${j}L * PITCH));
% endfor
% for i in range(rows):
    const V w${i} = LOADV(ws + (k + ${i}L * K));
% if ahead:
    AHEAD(ws + (k + ${i}L * K + ${ahead}));
% endif
% for j in range(cols):
    a${i}_${j} = w${i} * x${j} + a${i}_${j};
% endfor
% endfor
  }
% if rest:
% for j in range(cols):
  const V x${j} = ${kept(f"READ(ls + (K - LANES + {j}L * PITCH))")};
% endfor
% for i in range(rows):
  const V w${i} = ${kept(f"LOADV(ws + (K - LANES + {i}L * K))")};
% for j in range(cols):
  a${i}_${j} = w${i} * x${j} + a${i}_${j};
% endfor
% endfor
% endif
<% sums = [(i, j) for j in range(cols) for i in range(rows)] %>\
% for first in range(0, len(sums), lanes):
<% some = sums[first : first + lanes] %>\
  {
    union { V v; ACC s[LANES]; } u;
% for line in added([f"a{i}_{j}" for i, j in some]):
    ${line}
% endfor
    u.v = a${some[0][0]}_${some[0][1]};
% for lane, (i, j) in enumerate(some):
    put(OUT_ARGS, u.s[${lane}], AT(n + ${i}, p + ${j}), n + ${i});
% endfor
  }
% endfor
}
% endfor
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const FROM *restrict l, global const REAL *restrict w, OUT_PARAMS) {
  const int item = get_global_id(0), last = (int)((long)(item + 1) * (GROUPS * BLOCKS) / ITEMS);
  ONCE for (int job = (int)((long)item * (GROUPS * BLOCKS) / ITEMS); job < last; ++job) {
    const int g = job / BLOCKS, first = job % BLOCKS * MR, n = g * N + first;
    global const REAL *ws = w + (long)n * K;
    global const FROM *ls = l + g * APART;
% for rows in heights:
    ${"if (first + MR <= N)" if loop.first and len(heights) > 1 else "else" if len(heights) > 1 else ""} {
      ONCE for (int p = 0; p + ${widths[0]} <= PLACES; p += ${widths[0]})
        tile_${rows}_${widths[0]}(ws, ls + p * PITCH, OUT_ARGS, n, p);
% if len(widths) > 1:
      tile_${rows}_${widths[1]}(ws, ls + (PLACES - ${widths[1]}) * PITCH, OUT_ARGS, n, PLACES - ${widths[1]});
% endif
    }
% endfor
  }
}
