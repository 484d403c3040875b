## v[point][channel][tile] = (H d W^T)[point], d a tile of a tensor: transformed tiles, as the product reads them.
##
## One work item transforms one tile of one channel (NCHW: neighbours are tiles, which v holds side by side), or of VW
## channels (NHWC: neighbours are channels, and v is [point][tile][channel]). Elements outside the tensor, of no tile of
## this piece of the work or of no channel are 0.
<%
a_h, a_w = d.outputs
n_h, n_w = d.inputs
tensor = d.tensor
T = f"ACC{d.width}"
steps = tensor.axes
def name(letter, i, j): return f"{letter}{i}_{j}"
%>\
#include <convdispatch/vectors.cl>
kernel void transform_tiles(global const REAL *restrict from, global ACC *restrict to, int first) {
% if tensor.nhwc:
  const int c = get_global_id(0) * ${d.width}, t = get_global_id(1);
% else:
  const int t = get_global_id(0), c = get_global_id(1);
% endif
  if (t >= ${d.rows} || c >= ${d.groups * d.padded}) return;
<% tests = [f"t < {d.piece}", f"first + t < {d.tiles}"] + ([f"c % {d.padded} < {d.channels}"] if d.padded != d.channels else []) %>\
  const int exists = ${" && ".join(tests)};
  const int tile = exists ? first + t : 0, image = tile / ${d.counts[0] * d.counts[1]};
  const int y = tile / ${d.counts[1]} % ${d.counts[0]} * ${d.step[0]} + (${d.origin[0]});
  const int x = tile % ${d.counts[1]} * ${d.step[1]} + (${d.origin[1]});
% if d.padded != d.channels:
  const int channel = exists ? c / ${d.padded} * ${d.channels} + c % ${d.padded} : 0;
% else:
  const int channel = c;
% endif
  from += (long)image * ${tensor.image} + (long)channel * ${tensor.channel} + (long)y * ${steps[0]} + (long)x * ${steps[1]};
  to += ${d.at}L + ${f"((long)(c / {d.padded}) * {d.rows} + t) * {d.padded} + c % {d.padded}" if tensor.nhwc else f"(long)c * {d.rows} + t"};
% for i in range(n_h):
  const int row${i} = exists${f" && (uint)(y + {i}) < {tensor.size[0]}" if d.guarded(0, i) else ""};
% endfor
% for j, width in d.runs:
% if d.guarded(1, j):
  const int column${j} = (uint)(x + ${j}) < ${tensor.size[1]};
% endif
% endfor
% for j, width in d.runs:
% for i in range(n_h):
<%
test = f"row{i}" + (f" && column{j}" if d.guarded(1, j) else "")
value = f"{test} ? LOAD{d.width * width}(from + {i * steps[0] + j * steps[1]}) : (ACC{d.width * width})(0)"
%>\
% if width == 1:
  const ${T} ${name("d", i, j)} = ${value};
% else:
  const ACC${width} q${i}_${j} = ${value};
  const ${T} ${", ".join(f"{name('d', i, j + lane)} = q{i}_{j}.s{lane}" for lane in range(width))};
% endif
% endfor
% endfor
% for j in range(n_w):
${program(d.matrices[0], [name("d", i, j) for i in range(n_h)], [name("h", i, j) for i in range(a_h)], T)}
% endfor
% for i in range(a_h):
${program(d.matrices[1], [name("h", i, j) for j in range(n_w)], [name("v", i, j) for j in range(a_w)], T)}
% for j in range(a_w):
  *(global ${T} *)(to + ${(i * a_w + j)} * ${d.plane}L) = ${name("v", i, j)};
% endfor
% endfor
}
