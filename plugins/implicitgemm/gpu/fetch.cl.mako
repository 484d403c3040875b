## Loads the next slices of A and B from memory to registers; elements outside the tensor are 0.
<%def name="fetch_packed()">\
% for s in range(a_slots):
      a_next${s} = ${f"tid + {s * items} < {bk * bm // 4} ? " if (s + 1) * items > bk * bm // 4 else ""}*(global const quad *)(a_from + ${s * items * 4})${" : (ACC4)(0)" if (s + 1) * items > bk * bm // 4 else ""};
% endfor
</%def>
<%def name="fetch_source()">\
## Forward and data gradient: pixels are fixed, the channel and the tap change from slice to slice.
      {
% for axis in axes:
% if f.walked[axis]:
        const int shift_${names[axis]} = tap_${names[axis]} * SPREAD_${capitals[axis]};
% endif
% endfor
        const INDEX shift = (INDEX)channel * SOURCE_CHANNEL${"".join(f" + shift_{names[axis]} * (INDEX)SOURCE_{capitals[axis]}" for axis in axes if f.walked[axis])};
% for x in range(b.x_slots):
<%
checks = []
for axis in axes:
    if not f.guarded[axis] or (f.run and not f.walked[axis]): continue
    moved = f" + shift_{names[axis]}" if f.walked[axis] else ""
    checks.append(f"(uint)({names[axis]}{x}{moved}) < SIZE_{capitals[axis]}")
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
if f.c_ragged: guards.append(f"channel + b_k + {k * b.k_step} < SOURCE_CHANNELS")
offset = slot_offset(k) if f.run else f"{k * b.k_step} * SOURCE_CHANNEL"
value = f"LOAD4(from{x} + {offset})" if b.vec else f"LOAD(from{x}, {offset})"
if f.norm:
    inner = "" if f.run else f" + b_k + {k * b.k_step}"
    value = f"{'normed4_channels' if b.vk == 4 else 'normed4' if b.vec else 'normed'}(norm, {value}, group * SOURCE_CHANNELS + channel{inner})"
%>\
        b_next${x}_${k} = ${f"({' && '.join(guards)}) ? {value} : ({b.type})(0)" if guards else value};
% endfor
% endfor
      }
<% walked = [axis for axis in (2, 1, 0) if f.walked[axis]] %>\
% for axis in walked:
      if (++tap_${names[axis]} == ${taps[axis]}) {
        tap_${names[axis]} = 0;
% endfor
      channel += ${1 if f.run else bk};
      ${"}" * len(walked)}
</%def>
<%def name="fetch_places(o, source, tensor, guarded)"><% l = o.letter %>\
## Weights' gradient: channels (and taps) are fixed, the pixels change from slice to slice.
% for k in range(o.k_slots):
      {
        const int q = slice * ${bk} + ${l}_k + ${k * o.k_step};
<% checks = ["q < PLACES_ALL"] if f.q_ragged else [] %>\
        const int image = DIVIDED(q, PLACES), pixel = q - image * PLACES;
% if not source or f.pointwise:
        const INDEX at = (INDEX)image * ${tensor}_IMAGE + (INDEX)pixel * ${tensor}_X;
% else:
${grid.pixel_of("pixel", False)}\
% for axis in axes:
        const int i${names[axis]} = pixel_${names[axis]} * STEP_${capitals[axis]} + ORIGIN_${capitals[axis]}${"" if f.flat else f" + shift_{names[axis]}"};
% if f.guarded[axis] and not f.flat:
<% checks.append(f"(uint)i{names[axis]} < SIZE_{capitals[axis]}") %>\
% endif
% endfor
        const INDEX at = (INDEX)image * ${tensor}_IMAGE${"".join(f" + (INDEX)i{names[axis]} * {tensor}_{capitals[axis]}" for axis in axes)};
% endif
% if checks:
        const int ok = ${" && ".join(checks)};
% endif
        global const REAL *from = ${l} + (at + ${l}_at);
% for x in range(o.x_slots):
<%
guards = ["ok"] if checks else []
if f.flat and source:
    offset = f"b_at{x}"
    if f.n_ragged: guards.append(f"b_n{x} < N_END")
    guards += [f"(uint)(i{names[axis]} + b_{names[axis]}{x}) < SIZE_{capitals[axis]}" for axis in axes if f.guarded[axis]]
else:
    offset = f"{x * o.x_step} * {tensor}_CHANNEL"
    if guarded: guards.append(f"{l}_c + {x * o.x_step} < {tensor}_CHANNELS")
value = f"LOAD4(from + {offset})" if o.vec else f"LOAD(from, {offset})"
if f.norm and source:
    place = f"b_c{x}" if f.flat else f"b_c + {x * o.x_step}"
    value = f"{'normed4_channels' if o.vx == 4 else 'normed4' if o.vec else 'normed'}(norm, {value}, group * SOURCE_CHANNELS + {place})"
%>\
        ${l}_next${x}_${k} = ${f"({' && '.join(guards)}) ? {value} : ({o.type})(0)" if guards else value};
% endfor
      }
% endfor
</%def>\
<%namespace name="grid" file="places.cl.mako"/>\
% if f.data:
${fetch_packed()}\
${fetch_source()}\
% else:
${fetch_places(f.a, False, "TARGET", f.m_ragged)}\
${fetch_places(b, True, "SOURCE", f.n_ragged)}\
% endif
