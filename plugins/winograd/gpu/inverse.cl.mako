## out = activation(AT p A + bias + residual) [+ out] for every tile of products p; in the weights' gradient for every pair
## of channels.
##
## One work item writes one tile of one channel (NCHW: neighbours are tiles), or of VW channels (NHWC).
<%
a_h, a_w = geometry.alpha
o_h, o_w = geometry.taps if geometry.weights else geometry.tile
at_h, at_w = geometry.matrices("at")
T = f"ACC{o.width}"
def name(letter, i, j): return f"{letter}{i}_{j}"

extras = ["bias"] * problem.bias + ["residual"] * problem.residual
%>\
kernel void inverse(global const ACC *restrict p, global REAL *restrict out, ${"".join(f"global const REAL *restrict {name}, " for name in extras)}int first) {
% if geometry.weights:
  const int n = get_global_id(0) * ${o.width}, m = get_global_id(1), group = get_global_id(2);
  if (n >= ${o.n} || m >= ${o.m}) return;
  p += ${o.at}L + ((long)group * ${o.mp} + m) * ${o.np} + n;
  out += ((long)group * ${o.m} + m) * ${o.n * o.taps} + n${"" if geometry.nhwc else f" * {o.taps}"};
% else:
<% tensor = geometry.target %>\
% if geometry.nhwc:
  const int c = get_global_id(0) * ${o.width}, t = get_global_id(1);
% else:
  const int t = get_global_id(0), c = get_global_id(1);
% endif
  const int tile = first + t;
  if (t >= ${o.piece} || tile >= ${geometry.tiles} || c >= ${tensor.channels}) return;
  const int image = tile / ${geometry.counts[0] * geometry.counts[1]};
  const int y = tile / ${geometry.counts[1]} % ${geometry.counts[0]} * ${o_h}, x = tile % ${geometry.counts[1]} * ${o_w};
  const int group = c / ${o.m}, m = c % ${o.m};
  p += ${o.at}L + ${f"((long)group * {o.rows} + t) * {o.mp} + m" if geometry.nhwc else f"((long)group * {o.mp} + m) * {o.rows} + t"};
<% s_h, s_w = tensor.axes %>\
  const long at = (long)image * ${tensor.image} + (long)c * ${tensor.channel} + (long)y * ${s_h} + (long)x * ${s_w};
  out += at;
% if problem.residual:
  residual += at;
% endif
% if problem.bias:
  const ${T} shift = LOAD${o.width}(bias + c);
% endif
% endif
% for j, i in pairs(range(a_w), range(a_h)):
  const ${T} ${name("d", i, j)} = *(global const ${T} *)(p + ${i * a_w + j} * ${o.plane}L);
% endfor
% for j in range(a_w):
${program(at_h, [name("d", i, j) for i in range(a_h)], [name("h", i, j) for i in range(o_h)], T)}
% endfor
% for i in range(o_h):
${program(at_w, [name("h", i, j) for j in range(a_w)], [name("v", i, j) for j in range(o_w)], T)}
% endfor
% if geometry.weights:
% for i, j in pairs(range(o_h), range(o_w)):
  put${o.width}(out + ${(i * o_w + j) * (o.n if geometry.nhwc else 1)}, ${name("v", i, j)});
% endfor
% else:
  put_tile(${", ".join(["out"] + ["shift"] * problem.bias + ["residual"] * problem.residual + ["y", "x"] + [name("v", i, j) for i in range(o_h) for j in range(o_w)])});
% endif
}
<%! from itertools import product as pairs %>
