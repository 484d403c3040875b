## Planes of (G w G^T)[point], in the slices that the product copies: [point][slice][n tile][plane][n][k], k's chunks of 8
## exchanged as local memory wants them. The data gradient's kernel is flipped. What pads k and n is 0.
##
## A work item transforms the taps of one (k, n); neighbours along k write neighbours.
<%
a_h, a_w = geometry.alpha
k_h, k_w = geometry.taps
g_h, g_w = geometry.matrices("g")
t = tiling.tile
flipped = geometry.problem.direction == "bwd_data"
s_m, s_k, s_tap = f.strides
slices = tiling.slices[0]
def name(letter, i, j): return f"{letter}{i}_{j}"
%>\
#include <convdispatch/vectors.cl>
kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void weights(global const REAL *restrict w, global ushort *restrict to) {
  const int k = get_global_id(0), n = get_global_id(1);
  global const int *marks = (global const int *)to;
  if (n >= ${tiling.n_tiles * t.bn} || k >= ${slices * t.bk}) return;
  const int exists = n < ${f.m} && k < ${f.k};
  const int shift = exists ? ${exponent.format(norms="marks", marks="marks", group="0", row="n", k="k")} : 0;
  w += exists ? (long)n * ${s_m} + (long)k * ${s_k} : 0;
  const int row = n % ${t.bn}, chunk = k % ${t.bk} / 8 ^ ${"row % 8" if t.bk == 64 else "row / 2 % 4"};
  to += ${weights_at}L + ((long)(k / ${t.bk}) * ${tiling.n_tiles} + n / ${t.bn}) * ${tiling.weight_slice} + row * ${t.bk} + (chunk << 3) + k % 8;
% for i in range(k_h):
% for j in range(k_w):
<% tap = (k_h - 1 - i) * k_w + k_w - 1 - j if flipped else i * k_w + j %>\
  const float ${name("d", i, j)} = exists ? shifted(LOAD1(w + ${tap * s_tap}), shift) : 0.0f;
% endfor
% endfor
% for j in range(k_w):
${program(g_h, [name("d", i, j) for i in range(k_h)], [name("h", i, j) for i in range(a_h)], "float")}
% endfor
% for i in range(a_h):
${program(g_w, [name("h", i, j) for j in range(k_w)], [name("v", i, j) for j in range(a_w)], "float")}
% for j in range(a_w):
  {
    const uint both = split(${name("v", i, j)});
    to[${(i * a_w + j) * slices * tiling.n_tiles * tiling.weight_slice}L] = (ushort)both;
    to[${(i * a_w + j) * slices * tiling.n_tiles * tiling.weight_slice + t.bn * t.bk}L] = (ushort)(both >> 16);
  }
% endfor
% endfor
}
