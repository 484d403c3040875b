## Planes of v[point] = (H d W^T)[point], d a tile of a tensor, for the product: [point][tile][plane][channel].
##
## A work group transforms ``tiles`` tiles of ``channels`` channels, a work item one of each. Both planes of a row of points
## pass through local memory, so that neighbours read neighbouring pixels (or channels, NHWC) and write neighbouring
## channels; work groups side by side write the next channels. Tiles beyond the last of this piece are zeros. ``first`` is
## the piece's first tile.
<%
a_h, a_w = d.outputs
n_h, n_w = d.inputs
tensor = d.tensor
steps = tensor.axes
items = tiles * channels
pitch = channels + 4  # spreads the tiles over the banks
def name(letter, i, j): return f"{letter}{i}_{j}"
%>\
#include <convdispatch/vectors.cl>
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void tiles(global const REAL *restrict from, global ushort *restrict to, global const int *restrict norms, int first) {
  local uint4 turn[2][${a_w * tiles * pitch // 4}];  // a row's readers and the next row's writers need no barrier between
  const int tid = get_local_id(0);
% if tensor.nhwc:
  const int my_c = tid % ${channels}, my_t = tid / ${channels};
% else:
  const int my_t = tid % ${tiles}, my_c = tid / ${tiles};
% endif
  const int first_t = get_group_id(0) / ${channel_blocks} * ${tiles}, first_c = get_group_id(0) % ${channel_blocks} * ${channels};
  const int t = first_t + my_t, c = first_c + my_c;
  const int exists = t < ${d.piece} && first + t < ${d.tiles} && c < ${d.channels};
  const int tile = exists ? first + t : 0, channel = exists ? c : 0, image = tile / ${d.counts[0] * d.counts[1]};
  const int y = tile / ${d.counts[1]} % ${d.counts[0]} * ${d.step[0]} + (${d.origin[0]});
  const int x = tile % ${d.counts[1]} * ${d.step[1]} + (${d.origin[1]});
  global int *marks = (global int *)to;
  const int shift = ${exponent.format(norms="norms", marks="marks", group="0", row="image" if tiling.data else "channel", k="channel" if tiling.data else "image")};
% if tiling.data:
  if (c == 0 && t < ${d.rows}) marks[${tile_marks} + t] = marks[MARKS0 + image];
% endif
  from += (long)image * ${tensor.image} + (long)channel * ${tensor.channel} + (long)y * ${steps[0]} + (long)x * ${steps[1]};
% for i in range(n_h):
  const int row${i} = exists${f" && (uint)(y + {i}) < {tensor.size[0]}" if d.guarded(0, i) else ""};
% endfor
% for j, width in runs:
% if d.guarded(1, j):
  const int column${j} = (uint)(x + ${j}) < ${tensor.size[1]};
% endif
% endfor
% for j, width in runs:
% for i in range(n_h):
<%
test = f"row{i}" + (f" && column{j}" if d.guarded(1, j) else "")
value = f"{test} ? LOAD{width}(from + {i * steps[0] + j * steps[1]}) : (ACC{width})(0)"
%>\
% if width == 1:
  const float ${name("d", i, j)} = shifted(${value}, shift);
% else:
  const ACC${width} q${i}_${j} = ${value};
  const float ${", ".join(f"{name('d', i, j + lane)} = shifted(q{i}_{j}.s{lane}, shift)" for lane in range(width))};
% endif
% endfor
% endfor
% for j in range(n_w):
${program(d.matrices[0], [name("d", i, j) for i in range(n_h)], [name("h", i, j) for i in range(a_h)], "float")}
% endfor
% for i in range(a_h):
${program(d.matrices[1], [name("h", i, j) for j in range(n_w)], [name("v", i, j) for j in range(a_w)], "float")}
% for j in range(a_w):
  ((local uint *)turn[${i % 2}])[(${j * tiles} + my_t) * ${pitch} + my_c] = split(${name("v", i, j)});
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < ${a_w * tiles * channels // 8}; i += ${items}) {
    const int chunk = i % ${channels // 8}, line = i / ${channels // 8}, at = first_t + line % ${tiles};
    const int to_c = first_c + chunk * 8;
    if (at < ${d.rows} && to_c < ${d.channels}) {
      const uint4 low = turn[${i % 2}][line * ${pitch // 4} + chunk * 2], high = turn[${i % 2}][line * ${pitch // 4} + chunk * 2 + 1];
      global uint4 *place = (global uint4 *)(to + ${source_at}L + (${i * a_w} + line / ${tiles}) * ${src.group}L + (long)at * ${src.pixel} + to_c);
      place[0] = (uint4)(FIRST(low.x, low.y), FIRST(low.z, low.w), FIRST(high.x, high.y), FIRST(high.z, high.w));
      place[${src.plane // 8}] = (uint4)(SECOND(low.x, low.y), SECOND(low.z, low.w), SECOND(high.x, high.y), SECOND(high.z, high.w));
    }
  }
% endfor
}
