## u[point][group][k][m] = (G w G^T)[point]: transformed weights, neighbours along the target's channels m.
##
## The data gradient's kernel is flipped. Channels that pad k and m are 0.
<%
a_h, a_w = geometry.alpha
k_h, k_w = geometry.taps
g_h, g_w = geometry.matrices("g")
def name(letter, i, j): return f"{letter}{i}_{j}"
flipped = geometry.problem.direction == "bwd_data"
s_m, s_k, s_tap = f.strides
%>\
#include <convdispatch/vectors.cl>
kernel void transform_weights(global const REAL *restrict w, global ACC *restrict u) {
  const int m = get_global_id(0), k = get_global_id(1), group = get_global_id(2);
  if (m >= ${f.mp} || k >= ${f.kp}) return;
<% tests = ([f"m < {f.m}"] if f.m != f.mp else []) + ([f"k < {f.k}"] if f.k != f.kp else []) %>\
  const int exists = ${" && ".join(tests) or "1"};
  w += (long)group * ${f.group} + (long)m * ${s_m} + (long)k * ${s_k};
  u += ${f.at}L + ((long)group * ${f.kp} + k) * ${f.mp} + m;
% for i in range(k_h):
% for j in range(k_w):
<% tap = (k_h - 1 - i) * k_w + k_w - 1 - j if flipped else i * k_w + j %>\
  const ACC ${name("d", i, j)} = exists ? LOAD1(w + ${tap * s_tap}) : (ACC)0;
% endfor
% endfor
% for j in range(k_w):
${program(g_h, [name("d", i, j) for i in range(k_h)], [name("h", i, j) for i in range(a_h)], "ACC")}
% endfor
% for i in range(a_h):
${program(g_w, [name("h", i, j) for j in range(k_w)], [name("v", i, j) for j in range(a_w)], "ACC")}
% for j in range(a_w):
  u[${i * a_w + j} * ${f.plane}L] = ${name("v", i, j)};
% endfor
% endfor
}
