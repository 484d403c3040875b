## packed[group][phase][m tile][slice][k][m] = w: the weights in the slices that a work group copies unchanged.
##
## One work item a (m, channel): it reads that pair's taps, neighbours write neighbouring m. What pads a tile is 0.
<%
geo, t = p.geometry, p.tile
names = "zyx"
w_m, w_c, w_tap = p.weight_strides
kz, ky, kx = geo.kernel
many = len(geo.phases) > 1
%>\
kernel void pack(global const REAL *restrict w, global ACC *restrict packed) {
  const int m = get_global_id(0), c = get_global_id(1), group = get_global_id(2);
  if (m >= ${p.m_tiles * t.bm} || c >= ${p.c_padded}) return;
  const int exists = m < ${geo.m} && c < ${geo.c};
  w += ${p.weight_group("group")} + (long)m * ${w_m} + (long)c * ${w_c};
% for number, f in enumerate(geo.phases):
% if f.volume:
  for (int tap = 0; tap < ${f.volume}; ++tap) {
    const int z = tap / ${f.taps[1] * f.taps[2]} * ${geo.tap_step[0]} + ${f.tap0[0]};
    const int y = tap / ${f.taps[2]} % ${f.taps[1]} * ${geo.tap_step[1]} + ${f.tap0[1]};
    const int x = tap % ${f.taps[2]} * ${geo.tap_step[2]} + ${f.tap0[2]};
% if p.taps_in_slice:
    const int slice = c * ${p.runs} + tap / ${t.bk}, k = tap % ${t.bk};
% else:
    const int slice = c / ${t.bk} * ${f.volume} + tap, k = c % ${t.bk};
% endif
    const long to = ((long)group * ${p.slices_all} + ${p.slices_before[number]}) * ${p.m_tiles * t.bk * t.bm}
        + (((long)(m / ${t.bm}) * ${p.slices[number]} + slice) * ${t.bk} + k) * ${t.bm} + m % ${t.bm};
    packed[to] = exists ? LOAD(w, ((z * ${ky} + y) * ${kx} + x) * ${w_tap}) : (ACC)0;
  }
% endif
% endfor
}
