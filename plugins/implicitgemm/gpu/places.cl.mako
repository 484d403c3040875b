## The offsets of the elements that a work item reads of A and B, and the first tap.
<%def name="place(o)">\
  // This item's first place in a slice of ${o.letter.upper()}; its other slots are literal offsets from it.
  const int ${o.letter}_k = (tid % ${o.kf} + ${o.kf} * (tid / ${o.kf * o.xl})) * ${o.vk};
  const int ${o.letter}_x = tid / ${o.kf} % ${o.xl} * ${o.vx};
</%def>
% if p.data:
${place(b)}\
  a += ((long)group * ${p.slices_all}${" + before" if many else ""}) * ${p.m_tiles * bk * bm} + ((long)m_tile * slices + slice) * ${bk * bm} + tid * 4;
  global const ACC *a_from = a;
  b += (long)group * ${geo.c} * ${src.channel}L + (long)b_k * ${0 if p.taps_in_slice else src.channel};
% for x in range(b.x_slots):
  INDEX at${x};
% if any(p.guarded):
  int ${", ".join(f"{names[axis]}{x}" for axis in axes if p.guarded[axis])};
% endif
  {
    // Places beyond the last are read as the last; their sums are not written.
    const int n = min(n0 + b_x + ${x * b.x_step}, n_end - ${b.vx}), image = n / ${per}, pixel = n % ${per};
% if geo.pointwise:
    at${x} = (INDEX)image * ${src.image} + (INDEX)pixel * ${strides[2]};
% else:
    const int iz = pixel / (${count[1]} * ${count[2]}) * ${geo.step[0]} + (${phase("origin", 0)});
    const int iy = pixel / ${count[2]} % ${count[1]} * ${geo.step[1]} + (${phase("origin", 1)});
    const int ix = pixel % ${count[2]} * ${geo.step[2]} + (${phase("origin", 2)});
    at${x} = (INDEX)image * ${src.image} + (INDEX)iz * ${strides[0]} + (INDEX)iy * ${strides[1]} + (INDEX)ix * ${strides[2]};
% for axis in axes:
% if p.guarded[axis]:
    ${names[axis]}${x} = i${names[axis]};
% endif
% endfor
% endif
  }
% if p.taps_in_slice and any(p.guarded[axis] and not p.walked[axis] for axis in axes):
  uint inside${x} = 0;
% for k in range(bk):
<% tap = p.slot_tap(k); tests = [f"(uint)({names[axis]}{x} + {tap[axis] * geo.spread[axis]}) < {src.size[axis]}" for axis in axes if p.guarded[axis] and not p.walked[axis]] %>\
  if (${" && ".join(tests)}) inside${x} |= ${1 << k}u;
% endfor
% endif
% endfor
  int channel = 0${"".join(f", tap_{names[axis]} = 0" for axis in axes if p.walked[axis])};
% if p.split > 1:
  {
    int left = slice;
% for axis in (2, 1, 0):
% if p.walked[axis]:
    tap_${names[axis]} = left % max(1, ${phase("taps", axis)});
    left /= max(1, ${phase("taps", axis)});
% endif
% endfor
    channel = left * ${1 if p.taps_in_slice else bk};
  }
% endif
% else:
${place(p.a)}\
${place(b)}\
<% chunks = -(-geo.c // bn) %>\
  const int a_c = m0 + a_x;
  const INDEX a_at = ((INDEX)group * ${geo.m} + a_c) * ${geo.target.channel};
% if p.flat:
  const INDEX b_at = (INDEX)group * ${geo.c * src.channel};
% for x in range(b.x_slots):
  const int b_n${x} = n_tile * ${bn} + b_x + ${x * b.x_step};
<%
div_tap, div_c = (f"b_n{x} % {geo.volume}", f"b_n{x} / {geo.volume}") if not src.nhwc else (f"b_n{x} / {geo.c}", f"b_n{x} % {geo.c}")
kz, ky, kx = geo.kernel
%>\
  const int b_z${x} = (${div_tap}) / ${ky * kx} * ${geo.spread[0]}, b_y${x} = (${div_tap}) / ${kx} % ${ky} * ${geo.spread[1]}, b_x${x} = (${div_tap}) % ${kx} * ${geo.spread[2]};
% if p.norm:
  const int b_channel${x} = ${div_c};
% endif
  const INDEX b_at${x} = (INDEX)(${div_c}) * ${src.channel} + (INDEX)b_z${x} * ${strides[0]} + (INDEX)b_y${x} * ${strides[1]} + (INDEX)b_x${x} * ${strides[2]};
% endfor
% else:
  const int tap = n_tile / ${chunks}, n0 = n_tile % ${chunks} * ${bn}, b_c = n0 + b_x;
<% kz, ky, kx = geo.kernel %>\
  const int shift_z = tap / ${ky * kx} * ${geo.spread[0]}, shift_y = tap / ${kx} % ${ky} * ${geo.spread[1]}, shift_x = tap % ${kx} * ${geo.spread[2]};
  const INDEX b_at = ((INDEX)group * ${geo.c} + b_c) * ${src.channel};
% endif
% endif
