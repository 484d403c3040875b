## What follows the sums of a tile: parts of ``product.cl.mako`` and ``stream.cl.mako``, whose kernels have m0, n0, group, tid, lane,
## m_warp, n_warp and sum; memory, offsets and multipliers.
<%!
def numbers_of(tiling):
    size, unit = tiling.problem.out_itemsize, tiling.out_unit
    vector = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort", 1: "uchar"}[unit]
    return tiling.tile, size, unit, vector, tiling.tile.bn * size // unit, -(-tiling.tile.bn * size // 128)
%>\
<%def name="macros()">\
#define HELD_WORDS
#include <convdispatch/quantized.cl>
#define FINISH(s, e, i) finish_sum(words, (int)((uint)(s) + offset.e), multiplier.e, RESIDUAL ? LOAD_OUT(to, i) : 0)
// Two neighbouring channels of a place.
#if OUT_BYTES
#define FINISH2(s0, s1) *(local ushort *)to = (uchar)FINISH(s0, x, 0) | (ushort)(uchar)FINISH(s1, y, 1) << 8
#else
#define FINISH2(s0, s1) STORE_OUT(to, 0, FINISH(s0, x, 0)); STORE_OUT(to, 1, FINISH(s1, y, 1))
#endif
</%def>\
## The table's words, in registers.
<%def name="words()">\
    int words[16];
#pragma unroll
    for (int i = 0; i < 15; ++i) words[i] = table[i];
    words[15] = as_int(div_rn(1.0f, as_float(words[12])));
</%def>\
## What each channel needs after its sums, read while the first copies are on their way.
<%def name="numbers()">\
<% t, size, unit, vector, units, lines = numbers_of(tiling) %>\
    for (int i = tid; i < ${t.bn}; i += ${t.items}) {
      const int channel = group * ${tiling.n} + min(n0 + i, ${tiling.n - 1});
      offsets[i] = (uint)BIASES(table)[channel] - (uint)X_ZERO(table) * (uint)sums_of_w[group * ${tiling.rows} + n0 + i];
      multipliers[i] = MULTIPLIERS(table)[channel];
    }
% if tiling.problem.residual:
    for (int i = tid; i < ${t.bm * lines}; i += ${t.items}) {
      const int r = i / ${lines}, b = i % ${lines} * 128;
      if (m0 + r < ${tiling.places} & n0 * ${size} + b < ${tiling.n * size})
        prefetch_line((global const uchar *)residual + ((long)(m0 + r) * OC + group * ${tiling.n} + n0) * ${size} + b);
    }
% endif
</%def>\
<%def name="each_unit(to, from_)">\
<% t, size, unit, vector, units, lines = numbers_of(tiling) %>\
#pragma unroll
    for (int i = 0; i < ${-(-t.bm * units // t.items)}; ++i) {
      const int number = i * ${t.items} + tid, r = number / ${units}, b = number % ${units} * ${unit};
      const int there = r < ${t.bm} & m0 + r < ${tiling.places} & n0 * ${size} + b < ${tiling.n * size};
      const long byte = ((long)(m0 + r) * OC + group * ${tiling.n} + n0) * ${size} + b;
      if (there) *(${to}) = *(${from_});
    }
</%def>\
## y's tile, finished: ``meet`` is where all who have sums wait for one another.
<%def name="leave(meet)">\
<%
t, size, unit, vector, units, lines = numbers_of(tiling)
here = f"(local {vector} *)(memory + r * {tiling.out_row} + b + {tiling.out_at})"
%>\
% if tiling.problem.residual:
${each_unit(here, f"(global const {vector} *)((global const uchar *)residual + byte)")}\
    ${meet};
% endif
    // Four lanes have eight neighbouring channels, two each.
% for j in range(t.frag_n):
    {
      const int n = n_warp + ${j * 8} + lane % 4 * 2;
      const uint2 offset = *(local const uint2 *)(offsets + n);
      const float2 multiplier = *(local const float2 *)(multipliers + n);
      local uchar *from = memory + ${tiling.out_at} + (m_warp + lane / 4) * ${tiling.out_row} + n * ${size};
% for i in range(t.frag_m):
% for half in range(2):
<% s0 = (i * t.frag_n + j) * 4 + half * 2 %>\
      {
        local OUT *to = (local OUT *)(from + ${(i * 16 + half * 8) * tiling.out_row});
        FINISH2(sum[${s0}], sum[${s0 + 1}]);
      }
% endfor
% endfor
    }
% endfor
    ${meet};
${each_unit(f"(global {vector} *)((global uchar *)y + byte)", here)}\
</%def>\
