## Loads the next slices of A and B from memory to registers; elements outside the tensor are 0.
<%def name="fetch_packed()">\
% for s in range(p.a_slots):
      a_next${s} = ${f"tid + {s * items} < {bk * bm // 4} ? " if (s + 1) * items > bk * bm // 4 else ""}*(global const quad *)(a_from + ${s * items * 4})${" : (ACC4)(0)" if (s + 1) * items > bk * bm // 4 else ""};
% endfor
</%def>
<%def name="fetch_source()">\
## Forward and data gradient: pixels are fixed, the channel and the tap change from slice to slice.
      {
% for axis in axes:
% if p.walked[axis]:
        const int shift_${names[axis]} = tap_${names[axis]} * ${geo.spread[axis]};
% endif
% endfor
        const INDEX shift = (INDEX)channel * ${src.channel}${"".join(f" + shift_{names[axis]} * (INDEX){strides[axis]}" for axis in axes if p.walked[axis])};
% for x in range(b.x_slots):
<%
checks = []
for axis in axes:
    if not p.guarded[axis] or (p.taps_in_slice and not p.walked[axis]): continue
    moved = f" + shift_{names[axis]}" if p.walked[axis] else ""
    checks.append(f"(uint)({names[axis]}{x}{moved}) < {src.size[axis]}")
masked = p.taps_in_slice and any(p.guarded[axis] and not p.walked[axis] for axis in axes)
%>\
% if checks and not masked:
        const int ok${x} = ${" && ".join(checks)};
% elif masked:
        const uint ok${x} = ${f"{' && '.join(checks)} ? inside{x} : 0u" if checks else f"inside{x}"};
% endif
        global const REAL *from${x} = b + (at${x} + shift);
% for k in range(b.k_slots):
<%
guards = []
if masked: guards.append(f"(ok{x} & {1 << k}u)")
elif checks: guards.append(f"ok{x}")
if p.c_ragged: guards.append(f"channel + b_k + {k * b.k_step} < {geo.c}")
offset = p.slot_offset(k) if p.taps_in_slice else k * b.k_step * src.channel
value = f"LOAD4(from{x} + {offset})" if b.vec else f"LOAD(from{x}, {offset})"
if p.norm:
    inner = "" if p.taps_in_slice else f" + b_k + {k * b.k_step}"
    value = f"{'normed4_channels' if b.vk == 4 else 'normed4' if b.vec else 'normed'}(norm, {value}, group * {geo.c} + channel{inner})"
%>\
        b_next${x}_${k} = ${f"({' && '.join(guards)}) ? {value} : ({b.type})(0)" if guards else value};
% endfor
% endfor
      }
<% walked = [axis for axis in (2, 1, 0) if p.walked[axis]] %>\
% for axis in walked:
      if (++tap_${names[axis]} == ${phase("taps", axis)}) {
        tap_${names[axis]} = 0;
% endfor
      channel += ${1 if p.taps_in_slice else bk};
      ${"}" * len(walked)}
</%def>
<%def name="fetch_places(o, source, tensor, guarded)"><% l = o.letter %>\
## Weights' gradient: channels (and taps) are fixed, the pixels change from slice to slice.
% for k in range(o.k_slots):
      {
        const int q = slice * ${bk} + ${l}_k + ${k * o.k_step};
<% checks = [f"q < {p.n_places}"] if p.n_places % bk else [] %>\
        const int image = q / ${geo.target.pixels}, pixel = q % ${geo.target.pixels};
% if not source or geo.pointwise:
        const INDEX at = (INDEX)image * ${tensor.image} + (INDEX)pixel * ${tensor.axes[2]};
% else:
<%
size_out = geo.target.size
div = ["0" if size_out[0] == 1 else f"pixel / {size_out[1] * size_out[2]}",
       f"pixel / {size_out[2]}" + (f" % {size_out[1]}" if size_out[0] > 1 else ""), f"pixel % {size_out[2]}"]
shifts = [f" + shift_{names[axis]}" if not p.flat else "" for axis in axes]
%>\
% for axis in axes:
        const int i${names[axis]} = (${div[axis]}) * ${geo.step[axis]} + (${geo.phases[0].origin[axis]})${shifts[axis]};
% if p.guarded[axis] and not p.flat:
<% checks.append(f"(uint)i{names[axis]} < {src.size[axis]}") %>\
% endif
% endfor
        const INDEX at = (INDEX)image * ${tensor.image}${"".join(f" + (INDEX)i{names[axis]} * {tensor.axes[axis]}" for axis in axes)};
% endif
% if checks:
        const int ok = ${" && ".join(checks)};
% endif
        global const REAL *from = ${l} + (at + ${l}_at);
% for x in range(o.x_slots):
<%
guards = ["ok"] if checks else []
if p.flat and source:
    offset = f"b_at{x}"
    if p.n % bn: guards.append(f"b_n{x} < {p.n}")
    guards += [f"(uint)(i{names[axis]} + b_{names[axis]}{x}) < {src.size[axis]}" for axis in axes if p.guarded[axis]]
else:
    offset = x * o.x_step * tensor.channel
    if guarded: guards.append(f"{l}_c + {x * o.x_step} < {guarded}")
value = f"LOAD4(from + {offset})" if o.vec else f"LOAD(from, {offset})"
if p.norm and source:
    place = f"b_channel{x}" if p.flat else f"b_c + {x * o.x_step}"
    value = f"{'normed4_channels' if o.vx == 4 else 'normed4' if o.vec else 'normed'}(norm, {value}, group * {geo.c} + {place})"
%>\
        ${l}_next${x}_${k} = ${f"({' && '.join(guards)}) ? {value} : ({o.type})(0)" if guards else value};
% endfor
      }
% endfor
</%def>\
% if p.data:
${fetch_packed()}\
${fetch_source()}\
% else:
${fetch_places(p.a, False, geo.target, geo.m if geo.m % bm else 0)}\
${fetch_places(p.b, True, src, geo.c if geo.c % bn else 0)}\
% endif
