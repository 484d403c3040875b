## Asynchronous copies of a slice to local memory, a part of ``product.cl.mako``.
##
## slice   expression of the slice's number; for a window, of the block of channels
## stage   expression of the byte offset in local memory
## number  the number of a window's block of rows, or None to copy a slice
## normalise  1: normalise what this work item copied of a slice, where that is inside the source
<% bits = tiling.tap_bits; low = [bits[1] + bits[2], bits[2], 0] %>\
<%def name="fetch_packed(slice, stage)">\
      {
        global const ushort *from = b + (long)${slice} * ${tiling.n_tiles * tiling.weight_slice};
% for i in range(-(-tiling.weight_slice // 8 // items)):
        ${f"if (tid < {tiling.weight_slice // 8 - i * items}) " if (i + 1) * items > tiling.weight_slice // 8 else ""}copy16(memory, base, ${stage} + tid * 16 + ${b_const + i * items * 16}, from + ${i * items * 8}, 1);
% endfor
      }
</%def>
<%def name="fetch_rows(slice, stage)">\
      {
% if t.window:
        const int inner = ${slice} / ${volume} * ${cr} + chunk, k = ${slice} % ${volume} * ${c8} + inner, real_k = inner < ${c8};
% else:
        const int k = ${slice} * ${cr} + chunk, real_k = k < ${tiling.depth(geo.phases[0])};
% endif
        global const ushort *from = b + (long)row * ${tiling.depth(geo.phases[0]) * 8} + k * 8;
% for i in range(-(-t.bn * cr // items)):
        ${f"if (row + {i * step_a} < {t.bn}) " if (i + 1) * step_a > t.bn else ""}copy16(memory, base, ${stage} + to + ${b_const + i * step_a * rowb}, from + ${i * step_a * tiling.depth(geo.phases[0]) * 8}L, real_k & (n0 + row + ${i * step_a} < ${geo.m}));
% endfor
      }
</%def>
<%def name="fetch_transposed(slice, stage)">\
<% p = geo.phases[0]; step_b = items // 8; taps = [f"tap / {p.taps[1] * p.taps[2]}", f"tap / {p.taps[2]} % {p.taps[1]}", f"tap % {p.taps[2]}"] %>\
% for i in range(-(-t.bk // step_b)):
      {
% if t.window:
        const int tap = ${slice} % ${volume}, channel = ${slice} / ${volume} * ${t.bk} + b_row + ${i * step_b}, real_k = channel < ${geo.c};
% else:
        const int k = ${slice} * ${t.bk} + b_row + ${i * step_b}, tap = k / ${c8 * 8}, channel = k % ${c8 * 8}, real_k = k < ${tiling.depth(p) * 8};
% endif
        const int at = ${" + ".join(f"({taps[axis]} * ({geo.tap_step[axis]}) + {p.tap0[axis]}) * {tiling.kernel_axes[axis]}" for axis in axes)};
        global const ushort *from = b + (long)channel * ${tiling.weight_strides[0]} + at;
% for block in range(t.bn // 64):
        ${f"if (b_row < {t.bk - i * step_b}) " if (i + 1) * step_b > t.bk else ""}copy16(memory, base, ${stage} + b_to + ${b_const + block * t.bk * 128 + i * step_b * 128}, from + ${block * 64}, real_k & (n0 + ${block * 64} + b_chunk * 8 < ${geo.m}));
% endfor
      }
% endfor
</%def>
<%def name="fetch_weight_slice(slice, stage)">\
% if tiling.transposed_weights:
${fetch_transposed(slice, stage)}\
% elif tiling.direct_weights:
${fetch_rows(slice, stage)}\
% else:
${fetch_packed(slice, stage)}\
% endif
</%def>
<%def name="fetch_window(i, block, at)">\
      {
        const int r = row + ${i * step_w}, u = m0 + r, image = u / ${win.image};
        const int z = u / ${win.size[1] * win.size[2]} % ${win.size[0]} - ${win.near[0]}, y = u / ${win.size[2]} % ${win.size[1]} - ${win.near[1]}, x = u % ${win.size[2]} - ${win.near[2]};
        const int ok = image < ${win.images} & ${block} * ${cr} + chunk < ${c8} & ((uint)z < ${src.size[0]}u) & ((uint)y < ${src.size[1]}u) & ((uint)x < ${src.size[2]}u);
        global const ushort *from = a + ((INDEX)image * ${src.image} + (INDEX)z * ${src.axes[0]} + (INDEX)y * ${src.axes[1]} + (INDEX)x * ${src.axes[2]} + (${block} * ${cr} + chunk) * 8);
        ${f"if (r < {tiling.window_rows}) " if (i + 1) * step_w > tiling.window_rows else ""}{
% for p in range(planes):
          copy16(memory, base, ${at} + ${p * wplane} + r * ${rowb} + ((chunk ^ ${swizzled("r")}) << 4), from + ${p * src.plane}, ok);
% endfor
        }
      }
</%def>
<%def name="tap_of(slice)">\
        const int q = ${slice} * ${cr} + chunk, tap = q / ${c8};
<%
kx, ky = phase("taps", 2), phase("taps", 1)
div = [f"tap / max(1, {kx} * {ky})", f"tap / max(1, {kx}) % max(1, {ky})", f"tap % max(1, {kx})"]
if not many:
    k = geo.phases[0].taps
    div = ["0" if k[0] == 1 else f"tap / {k[1] * k[2]}", "0" if k[1] == 1 else f"tap / {k[2]}" + ("" if k[0] == 1 else f" % {k[1]}"), "0" if k[2] == 1 else f"tap % {k[2]}"]
%>\
% for axis in axes:
        const int t${names[axis]} = ${div[axis]};
% endfor
        const int real = q < depth;
</%def>\
<%def name="fetch_data(slice, stage)">\
      {
${tap_of(slice)}\
        const INDEX shift = ${" + ".join(f"(INDEX)t{names[axis]} * ({geo.spread[axis] * src.axes[axis]})" for axis in axes)} + q % ${c8} * 8;
% for i in range(rows_a):
        {
          const int ok = real${"".join(f" & (int)(ok{i} >> ({low[axis]} + t{names[axis]}))" for axis in axes if tiling.guarded[axis])};
          global const ushort *from = a + (at${i} + shift);
% for p in range(planes):
          copy16(memory, base, ${stage} + to + ${p * a_bytes + i * step_a * rowb}, from + ${p * src.plane}, ok & 1);
% endfor
        }
% endfor
${fetch_weight_slice(slice, stage)}\
      }
</%def>
<%def name="normalise_rows(slice, stage)">\
      {
${tap_of(slice)}\
        global const float4 *table = (global const float4 *)(norm + group * ${geo.c} + (real ? q % ${c8} * 8 : 0));
        const float4 mean[2] = {table[0], table[1]};
        const float4 scale[2] = {table[${geo.c * geo.groups // 4}], table[${geo.c * geo.groups // 4 + 1}]};
        const float4 shift[2] = {table[${geo.c * geo.groups // 2}], table[${geo.c * geo.groups // 2 + 1}]};
% for i in range(rows_a):
        if (real${"".join(f" & (int)(ok{i} >> ({low[axis]} + t{names[axis]}))" for axis in axes if tiling.guarded[axis])} & 1) {
          local uint4 *numbers = (local uint4 *)(memory + ${stage} + to + ${i * step_a * rowb});
          *numbers = normed_chunk(*numbers, mean, scale, shift);
        }
% endfor
      }
</%def>\
<%def name="fetch_weights(slice, stage)">\
% for i in range(rows_k):
      {
        const int q = ${slice} * ${t.bk} + row + ${i * step_k}, real = q < ${tiling.n_places};
<% dy = tiling.places; out = geo.phases[0].count %>\
        {
          global const ushort *from = a + (INDEX)q * ${dy.pixel};
% for block in range(t.bm // 64):
% for p in range(planes):
          copy16(memory, base, ${stage} + to + ${p * a_bytes + block * t.bk * 128 + i * step_k * 128}, from + (a_at + ${block * 64 + p * dy.plane}), real & (a_c + ${block * 64} < ${dy.c8 * 8}));
% endfor
% endfor
        }
        const int image = q / ${geo.phases[0].places}, pixel = q % ${geo.phases[0].places};
<% div = ["0" if out[0] == 1 else f"pixel / {out[1] * out[2]}", f"pixel / {out[2]}" + (f" % {out[1]}" if out[0] > 1 else ""), f"pixel % {out[2]}"] %>\
% for axis in axes:
        const int i${names[axis]} = (${div[axis]}) * ${geo.step[axis]} + (${geo.phases[0].origin[axis]});
% endfor
        global const ushort *from = b + ((INDEX)image * ${src.image}${"".join(f" + (INDEX)i{names[axis]} * {src.axes[axis]}" for axis in axes)});
% for block in range(t.bn // 64):
        {
          const int ok = real & real_b${block}${"".join(f" & ((uint)(i{names[axis]} + shift_{names[axis]}{block}) < {src.size[axis]}u)" for axis in axes if tiling.guarded[axis])};
% for p in range(planes):
          copy16(memory, base, ${stage} + to + ${planes * a_bytes + p * b_bytes + block * t.bk * 128 + i * step_k * 128}, from + (b_at${block} + ${p * src.plane}), ok);
% endfor
        }
% endfor
      }
% endfor
</%def>
<%def name="fetch(slice, stage)">\
% if t.window:
${fetch_weight_slice(slice, stage)}\
% elif data:
${fetch_data(slice, stage)}\
% else:
${fetch_weights(slice, stage)}\
% endif
</%def>
% if normalise:
${normalise_rows(slice, stage)}\
% elif number is None:
${fetch(slice, stage)}\
% else:
${fetch_window(number, slice, stage)}\
% endif
