## Planes of v[point] = (H d W^T)[point], d a tile of a tensor, for the product: [point][tile][plane][channel].
##
## A work group transforms TILES tiles of CHANNELS channels, a work item one of each. The planes of a row of points pass
## through local memory, so that neighbours read neighbouring pixels (or channels, channels last) and write neighbouring
## channels. Tiles beyond the last of this piece are zeros. ``first`` is the piece's first tile.
<%
a_h, a_w = d.outputs
n_h, n_w = d.inputs
tensor, planes = d.tensor, job.format.planes
steps = tensor.axes
tiles, channels = 8, 32
pitch = channels + 8  # spreads the tiles over the banks
def name(letter, i, j): return f"{letter}{i}_{j}"
%>\
#include <convdispatch/vectors.cl>
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void tiles(global const REAL *restrict from, global ushort *restrict to, int first) {
  local uint4 turn[${a_w * planes * tiles * pitch // 8}];
  const int tid = get_local_id(0);
% if job.format.scaled:
  local float shared[256];
  global float *scales = (global float *)to + ${scale_at}L;
  shared[tid] = scales[1 + tid];
  const int exponent = exponent_of(largest_of_all(shared, tid));
  if (tid == 0 && get_group_id(0) == 0 && get_group_id(1) == 0) scales[0] = unscale_of(exponent, ${margin});
  const float scale = scale_of(exponent, ${margin});
% endif
% if tensor.nhwc:
  const int my_c = tid % ${channels}, my_t = tid / ${channels};
% else:
  const int my_t = tid % ${tiles}, my_c = tid / ${tiles};
% endif
  const int t = get_group_id(0) * ${tiles} + my_t, c = get_group_id(1) * ${channels} + my_c;
  const int exists = t < ${d.piece} && first + t < ${d.tiles} && c < ${d.channels};
  const int tile = exists ? first + t : 0, channel = exists ? c : 0, image = tile / ${d.counts[0] * d.counts[1]};
  const int y = tile / ${d.counts[1]} % ${d.counts[0]} * ${d.step[0]} + (${d.origin[0]});
  const int x = tile % ${d.counts[1]} * ${d.step[1]} + (${d.origin[1]});
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
  const float ${name("d", i, j)} = ${value};
% else:
  const ACC${width} q${i}_${j} = ${value};
  const float ${", ".join(f"{name('d', i, j + lane)} = q{i}_{j}.s{lane}" for lane in range(width))};
% endif
% endfor
% endfor
% for j in range(n_w):
${program(d.matrices[0], [name("d", i, j) for i in range(n_h)], [name("h", i, j) for i in range(a_h)], "float")}
% endfor
% for i in range(a_h):
${program(d.matrices[1], [name("h", i, j) for j in range(n_w)], [name("v", i, j) for j in range(a_w)], "float")}
% if i:
  barrier(CLK_LOCAL_MEM_FENCE);
% endif
% for j in range(a_w):
  {
    ushort part[${planes}];
    split(part, ${name("v", i, j)}${" * scale" if job.format.scaled else ""});
    for (int p = 0; p < ${planes}; ++p)
      ((local ushort *)turn)[((${j * planes} + p) * ${tiles} + my_t) * ${pitch} + my_c] = part[p];
  }
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < ${a_w * planes * tiles * channels // 8}; i += 256) {
    const int chunk = i % ${channels // 8}, at = get_group_id(0) * ${tiles} + i / ${channels // 8} % ${tiles};
    const int p = i / ${channels // 8 * tiles} % ${planes}, j = i / ${channels // 8 * tiles * planes};
    const int to_c = get_group_id(1) * ${channels} + chunk * 8;
    if (at < ${d.rows} && to_c < ${d.channels})
      *(global uint4 *)(to + ${source_at}L + (${i * a_w} + j) * ${src.group}L + (long)at * ${src.pixel} + p * ${src.plane} + to_c) =
          turn[i / ${channels // 8} * ${pitch // 8} + chunk];
  }
% endfor
}
