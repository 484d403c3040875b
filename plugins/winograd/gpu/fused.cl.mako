## Tiles of the source are transformed, multiplied and transformed back by one work group: nothing but weights is stored.
##
## A group computes 8 IM channels of 8 JN tiles, all points together: IM x JN work items a point, each a tile of 8 x 8
## products in quads that are 4 IM channels and 4 JN tiles apart. Slices of BK source channels follow each other, in two
## halves of local memory: while one is multiplied, rows of the next slice's tiles are transformed from registers into
## the other, then columns in pixel, and the rows of the slice after it are loaded. A point's weights are read by its own
## items alone, so they come from memory as they are needed, two channels ahead.
## The products are stored through local memory, ER rows of each item at a time.
<%
from math import prod
a_h, a_w = geometry.alpha
o_h, o_w = geometry.tile
bt_h, bt_w = geometry.matrices("bt")
at_h, at_w = geometry.matrices("at")
points, bk, im, jn, er = geometry.points, f.bk, f.im, f.jn, f.er
tm, tn, items = f.tm, f.tn, f.items
src, dst, weights = geometry.source, geometry.target, f.filter
s_h, s_w = src.axes
row_tasks, column_tasks, put_tasks = a_h * bk * tn, a_w * bk * tn, er * im * tn
extras = ["bias"] * problem.bias + ["residual"] * problem.residual
def name(letter, i, j): return f"{letter}{i}_{j}"
def slots(total): return range(-(-total // items))
def test(s, total): return f"tid + {s * items} < {total}" if (s + 1) * items > total else ""
def guard(s, total): return f"if ({test(s, total)}) " if test(s, total) else ""
ragged = weights.k % bk
data = f.work.source
half = points * bk * tn
%>\
typedef ACC4 __attribute__((aligned(${4 * f.accsize}))) quad;
<%def name="fetch()">\
% for s in slots(row_tasks):
% for j, width in data.runs:
<%
guards = [f"(mask{s} & {1 << j}u)"] + ([f"channel + c{s} < {weights.k}"] if ragged else [])
value = f"{' && '.join(guards)} ? LOAD{width}(from + at{s} + {j * s_w}) : (ACC{width})(0)"
%>\
% if width == 1:
      d${s}_${j} = ${value};
% else:
      {
        const ACC${width} q = ${value};
% for lane in range(width):
        d${s}_${j + lane} = q.s${lane};
% endfor
      }
% endif
% endfor
% endfor
      from += ${bk * src.channel};
      channel += ${bk};
</%def>
<%def name="rows(to)">\
% for s in slots(row_tasks):
    ${guard(s, row_tasks)}{
${program(bt_w, [f"d{s}_{j}" for j in range(a_w)], [f"v{j}" for j in range(a_w)], "ACC")}
      local ACC *to = ${to} + (i${s} * ${a_w * bk} + c${s}) * ${tn} + l${s};
% for j in range(a_w):
      to[${j * bk * tn}] = v${j};
% endfor
    }
% endfor
</%def>
<%def name="columns(to)">\
% if a_h > 1:
% for s in slots(column_tasks):
    ${guard(s, column_tasks)}{
      local ACC *to = ${to} + tid + ${s * items};  // (column, channel, tile) in the order of memory
% for i in range(a_h):
      const ACC h${i} = to[${i * a_w * bk * tn}];
% endfor
${program(bt_h, [f"h{i}" for i in range(a_h)], [f"v{i}" for i in range(a_h)], "ACC")}
% for i in range(a_h):
      to[${i * a_w * bk * tn}] = v${i};
% endfor
    }
% endfor
% endif
</%def>
<%def name="weights_at(k, n)">\
{
        global const ACC *at = u + min(${k}, ${weights.kp - 1}) * ${weights.mp};
        ${n}0 = *(global const quad *)(at + u0);
        ${n}1 = *(global const quad *)(at + u1);
      }
</%def>
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void fused(global const REAL *restrict from, global const ACC *restrict u, global REAL *restrict out${"".join(f", global const REAL *restrict {each}" for each in extras)}) {
  local ACC all[${f.local}] __attribute__((aligned(${4 * f.accsize})));
  const int tid = get_local_id(0), point = tid / ${im * jn}, tx = tid % ${jn}, ty = tid / ${jn} % ${im};
  int rest = get_group_id(0);
  const int m0 = rest % ${f.m_blocks} * ${tm};
  rest /= ${f.m_blocks};
  const int t0 = rest % ${f.t_blocks} * ${tn}, group = rest / ${f.t_blocks};
  from += (long)group * ${weights.k * src.channel};
  u += (long)point * ${weights.plane} + (long)group * ${weights.kp * weights.mp};
  // Channels that pad a block are read as the last ones; their products are not written.
  const int u0 = min(m0 + ty * 4, ${weights.mp - 4}), u1 = min(m0 + ty * 4 + ${4 * im}, ${weights.mp - 4});
  ACC4 n0, n1, f0, f1;  // weights of the next channel and of the one after it
  int channel = 0;
% for s in slots(row_tasks):
<%
fast, slow = ("c", "tile") if geometry.nhwc else ("tile", "c")
%>\
  // Row ${s} of this item: of tile l, channel c, row i of the tile.
% if geometry.nhwc:
  const int c${s} = (tid + ${s * items}) % ${bk}, l${s} = (tid + ${s * items}) / ${bk} % ${tn};
% else:
  const int l${s} = (tid + ${s * items}) % ${tn}, c${s} = (tid + ${s * items}) / ${tn} % ${bk};
% endif
  const int i${s} = (tid + ${s * items}) / ${tn * bk};
  INDEX at${s};
  uint mask${s} = 0;
  {
    const int exists = t0 + l${s} < ${geometry.tiles}${f" && {test(s, row_tasks)}" if test(s, row_tasks) else ""};
    const int tile = min(t0 + l${s}, ${geometry.tiles - 1}), image = tile / ${prod(geometry.counts)};
    const int y = tile / ${geometry.counts[1]} % ${geometry.counts[0]} * ${o_h} + (${geometry.origin[0]}) + i${s};
    const int x = tile % ${geometry.counts[1]} * ${o_w} + (${geometry.origin[1]});
    at${s} = (INDEX)image * ${src.image} + (INDEX)c${s} * ${src.channel} + (INDEX)y * ${s_h} + (INDEX)x * ${s_w};
    if (exists && (uint)y < ${src.size[0]}) {
% for j in range(a_w):
      ${f"if ((uint)(x + {j}) < {src.size[1]}) " if data.guarded(1, j) else ""}mask${s} |= ${1 << j}u;
% endfor
    }
  }
  ACC ${", ".join(f"d{s}_{j}" for j in range(a_w))};
% endfor
% for q, r in pairs(range(2), range(4)):
  ACC4 ${", ".join(f"p{q}_{r}_{p} = (ACC4)(0)" for p in range(2))};
% endfor
${fetch()}\
${weights_at("0", "n")}\
${weights_at("1", "f")}\
${rows("all")}\
% if a_h > 1:
  barrier(CLK_LOCAL_MEM_FENCE);
% endif
${columns("all")}\
  if (${f.slices} > 1) {
${fetch()}\
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int slice = 0; slice < ${f.slices}; ++slice) {
    local ACC *const now = all + slice % 2 * ${half}, *const next = all + (slice + 1) % 2 * ${half};
    if (slice + 1 < ${f.slices}) {
${rows("next")}\
    }
% if a_h > 1:
    barrier(CLK_LOCAL_MEM_FENCE);
% endif
    if (slice + 1 < ${f.slices}) {
${columns("next")}\
    }
    if (slice + 2 < ${f.slices}) {
${fetch()}\
    }
    local const ACC *b = now + point * ${bk * tn} + tx * 4;
#pragma unroll
    for (int k = 0; k < ${bk}; ++k) {
      const ACC4 a0 = n0, a1 = n1;
      n0 = f0;
      n1 = f1;
      ${weights_at(f"slice * {bk} + k + 2", "f")}\
      const ACC4 b0 = *(local const quad *)(b + k * ${tn}), b1 = *(local const quad *)(b + k * ${tn} + ${4 * jn});
% for q in range(2):
% for r, p in pairs(range(4), range(2)):
      p${q}_${r}_${p} = a${q}.s${r} * b${p} + p${q}_${r}_${p};
% endfor
% endfor
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
% for e in range(8 // er):
<% q, r0 = e * er // 4, e * er % 4 %>\
% for r, p in pairs(range(er), range(2)):
  *(local quad *)(all + (point * ${er * im} + ${r * im} + ty) * ${tn} + ${p * 4 * jn} + tx * 4) = p${q}_${r0 + r}_${p};
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
% for s in slots(put_tasks):
  ${guard(s, put_tasks)}{
% if geometry.nhwc:
    const int lr = (tid + ${s * items}) % ${er * im}, l = (tid + ${s * items}) / ${er * im};
% else:
    const int l = (tid + ${s * items}) % ${tn}, lr = (tid + ${s * items}) / ${tn};
% endif
    const int m = m0 + ${q * 4 * im} + lr % ${im} * 4 + ${r0} + lr / ${im}, tile = t0 + l;
    if (tile < ${geometry.tiles} && m < ${weights.m}) {
      local const ACC *p = all + lr * ${tn} + l;
% for j, i in pairs(range(a_w), range(a_h)):
      const ACC ${name("d", i, j)} = p[${(i * a_w + j) * er * im * tn}];
% endfor
% for j in range(a_w):
${program(at_h, [name("d", i, j) for i in range(a_h)], [name("h", i, j) for i in range(o_h)], "ACC")}
% endfor
% for i in range(o_h):
${program(at_w, [name("h", i, j) for j in range(a_w)], [name("v", i, j) for j in range(o_w)], "ACC")}
% endfor
      const int image = tile / ${prod(geometry.counts)}, c = group * ${weights.m} + m;
      const int y = tile / ${geometry.counts[1]} % ${geometry.counts[0]} * ${o_h}, x = tile % ${geometry.counts[1]} * ${o_w};
      const long at = (long)image * ${dst.image} + (long)c * ${dst.channel} + (long)y * ${dst.axes[0]} + (long)x * ${dst.axes[1]};
      put_tile(${", ".join(["out + at"] + ["LOAD(bias, c)"] * problem.bias + ["residual + at"] * problem.residual + ["y", "x"] + [name("v", i, j) for i in range(o_h) for j in range(o_w)])});
    }
  }
% endfor
% if e + 1 < 8 // er:
  barrier(CLK_LOCAL_MEM_FENCE);
% endif
% endfor
}
<%! from itertools import product as pairs %>
