## Stores slices of A and B from registers to local memory; ``at``: their offsets there.
<%def name="keep(o, place)"><% l = o.letter %>\
% for x in range(o.x_slots):
% for k in range(o.k_slots):
      {
        local ACC *to = s${l} + ${place} + (${l}_k + ${k * o.k_step}) * ${o.pitch} + ${l}_x + ${x * o.x_step};
% if o.vx == 4:
        *(local quad *)to = ${l}_next${x}_${k};
% elif o.vk == 4:
% for lane in range(4):
        to[${lane * o.pitch}] = ${l}_next${x}_${k}.s${lane};
% endfor
% else:
        *to = ${l}_next${x}_${k};
% endif
      }
% endfor
% endfor
</%def>
<%def name="keep_packed(place)">\
% for s in range(a_slots):
      ${f"if (tid + {s * items} < {bk * bm // 4}) " if (s + 1) * items > bk * bm // 4 else ""}*(local quad *)(sa + ${place} + (tid + ${s * items}) * 4) = a_next${s};
% endfor
</%def>\
% if f.data:
${keep_packed(at[0])}\
% else:
${keep(f.a, at[0])}\
% endif
${keep(b, at[1])}\
