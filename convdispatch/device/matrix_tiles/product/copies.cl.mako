## Asynchronous copies of a slice to local memory, a part of ``product.cl.mako``.
##
## slice   expression of the slice's number; for a window, of the block of channels
## stage   expression of the byte offset in local memory
## number  the number of a window's block of rows, or None to copy a slice
## normalise  1: normalise what this work item copied of a slice, where that is inside the source
<%def name="fetch_packed(slice, stage)">\
      {
        global const ushort *from = b + (long)${slice} * SLICE_STEP;
% for i in range(-(-weight_slice // 8 // items)):
        ${f"if (tid < {weight_slice // 8 - i * items}) " if (i + 1) * items > weight_slice // 8 else ""}copy16(memory, base, ${stage} + tid * 16 + ${b_const + i * items * 16}, from + ${i * items * 8}, 1);
% endfor
      }
</%def>
<%def name="fetch_rows(slice, stage)">\
      {
% if t.window:
        const int s = ${slice}, s_block = DIVIDED(s, TAPS), inner = s_block * ${cr} + chunk;
        const int k = (s - s_block * TAPS) * C8 + inner, real_k = inner < C8;
% else:
        const int k = ${slice} * ${cr} + chunk, real_k = ${"1" if form.whole else "k < DEPTH"};
% endif
        global const ushort *from = b + (long)row * WEIGHTS_ROW + k * 8;
% for i in range(-(-t.bn * cr // items)):
        ${f"if (row + {i * step_a} < {t.bn}) " if (i + 1) * step_a > t.bn else ""}copy16(memory, base, ${stage} + to + ${b_const + i * step_a * rowb}, from + ${f"{i * step_a} * (long)WEIGHTS_ROW" if i else "0"}, real_k & (n0 + row + ${i * step_a} < TARGET));
% endfor
      }
</%def>
<%def name="fetch_transposed(slice, stage)">\
<% step_b = items // 8 %>\
% for i in range(-(-t.bk // step_b)):
      {
% if t.window:
        const int s = ${slice}, s_block = DIVIDED(s, TAPS), kernel_tap = s - s_block * TAPS, channel = s_block * ${t.bk} + b_row + ${i * step_b}, real_k = channel < SOURCE;
% elif counted:
        const int channel = next_block * ${t.bk} + b_row + ${i * step_b}, real_k = 1;
% elif form.tapped:
        const int k = ${slice} * ${t.bk} + b_row + ${i * step_b}, kernel_tap = DIVIDED(k, CHUNKED), channel = k - kernel_tap * CHUNKED, real_k = k < DEPTH * 8;
% else:
        const int channel = ${slice} * ${t.bk} + b_row + ${i * step_b}, real_k = channel < CHUNKED;
% endif
<% taps = form.along("n" if counted else "k", False) %>\
% if not counted:
        ${form.split("kernel_tap", "TAPS", taps, "")}
% endif
        const int at = KERNEL_AT${"".join(f" + {name} * KERNEL_STEP_{capitals[axis]}" for axis, name in enumerate(taps) if name)};
        global const ushort *from = b + (long)channel * CHANNEL_STEP + at;
% for block in range(t.bn // 64):
        ${f"if (b_row < {t.bk - i * step_b}) " if (i + 1) * step_b > t.bk else ""}copy16(memory, base, ${stage} + b_to + ${b_const + block * t.bk * 128 + i * step_b * 128}, from + ${block * 64}, real_k & (n0 + ${block * 64} + b_chunk * 8 < TARGET));
% endfor
      }
% endfor
</%def>
<%def name="fetch_weight_slice(slice, stage)">\
% if form.weights == "transposed":
${fetch_transposed(slice, stage)}\
% elif form.weights == "rows":
${fetch_rows(slice, stage)}\
% else:
${fetch_packed(slice, stage)}\
% endif
</%def>
<%def name="fetch_window(i, block, at)">\
      {
        const int r = row + ${i * step_w}, u = m0 + r;
        ${form.split("u", "WINDOW", form.along("u"), "image")}
% for axis in form.axes:
        const int ${letters[axis]} = u${letters[axis]} - NEAR_${capitals[axis]};
% endfor
        const int ok = image < IMAGES & ${block} * ${cr} + chunk < C8${"".join(f" & ((uint){letters[axis]} < (uint)SIZE_{capitals[axis]})" for axis in form.axes)};
        global const ushort *from = a + ((INDEX)image * SOURCE_IMAGE + ${form.summand(form.along(""), "SOURCE")} + (${block} * ${cr} + chunk) * 8);
        ${f"if (r < {form.window_rows}) " if (i + 1) * step_w > form.window_rows else ""}{
% for p in range(planes):
          copy16(memory, base, ${at} + ${p * wplane} + r * ${rowb} + ((chunk ^ ${swizzled("r")}) << 4), from${f" + {p} * SOURCE_PLANE" if p else ""}, ok);
% endfor
        }
      }
</%def>
## The chunk of channels ``in_tap`` of a slice's tap, the tap along each axis, and whether they exist.
<%def name="tap_of(slice)">\
% if not form.tapped:
        const int in_tap = ${slice} * ${cr} + chunk, real = ${"1" if form.whole else "in_tap < depth"};
% else:
        const int q = ${slice} * ${cr} + chunk, tap = DIVIDED(q, C8), in_tap = q - tap * C8, real = ${"1" if form.whole else "q < depth"};
        ${form.split("tap", "TAPS", form.along("t", False), "")}
% endif
</%def>\
<%def name="inside(i, taps)">\
${"".join(f" & (int)(ok{i} >> {'(' + low + ')' if low else 0})" for axis in form.guarded for low in [" + ".join(filter(None, (f"LOW_{capitals[axis]}" if axis < 2 else "", taps[axis])))])}\
</%def>\
<%def name="fetch_data(slice, stage)">\
      {
<% taps = form.along("n" if counted or chunks_counted else "t", False) %>\
% if counted:
        const int in_tap = next_block * ${cr} + chunk, real = 1;
% elif chunks_counted:
        const int in_tap = next_in_tap, real = next_chunk < depth;
% else:
${tap_of(slice)}\
% endif
        const INDEX shift = ${form.summand(taps, "TAP")} + in_tap * 8;
% for i in range(rows_a):
        {
          const int ok = real${inside(i, taps)};
          global const ushort *from = a + (at${i} + shift);
% for p in range(planes):
          copy16(memory, base, ${stage} + to + ${p * a_bytes + i * step_a * rowb}, from${f" + {p} * SOURCE_PLANE" if p else ""}, ok & 1);
% endfor
        }
% endfor
${fetch_weight_slice(slice, stage)}\
% if counted or chunks_counted:
<% inner, *outer = [(f"n{letters[axis]}", form.number("taps", axis)) for axis in reversed(form.tapped)] %>\
% if counted:
        if (++next_block == BLOCKS) {
          next_block = 0;
% else:
        next_chunk += ${cr};
        for (next_in_tap += ${cr}; next_in_tap >= C8;) {
          next_in_tap -= C8;
% endif
          ++${inner[0]};
% for (name, size), (further, _) in zip([inner, *outer], outer):
          if (${name} == ${size}) ${name} = 0, ++${further};
% endfor
        }
% endif
      }
</%def>
<%def name="normalise_rows(slice, stage)">\
      {
<% taps = form.along("t", False) %>\
${tap_of(slice)}\
        global const float4 *table = (global const float4 *)(norm + group * SOURCE + (real ? in_tap * 8 : 0));
        const float4 mean[2] = {table[0], table[1]};
        const float4 scale[2] = {table[NORM_CHANNELS / 4], table[NORM_CHANNELS / 4 + 1]};
        const float4 shift[2] = {table[NORM_CHANNELS / 2], table[NORM_CHANNELS / 2 + 1]};
% for i in range(rows_a):
        if (real${inside(i, taps)} & 1) {
          local uint4 *numbers = (local uint4 *)(memory + ${stage} + to + ${i * step_a * rowb});
          *numbers = normed_chunk(*numbers, mean, scale, shift);
        }
% endfor
      }
</%def>\
<%def name="fetch_weights(slice, stage)">\
% for i in range(rows_k):
      {
        const int q = ${slice} * ${t.bk} + row + ${i * step_k}, real = q < PLACES;
        {
          global const ushort *from = a + (INDEX)q * PLACES_PIXEL;
% for block in range(t.bm // 64):
% for p in range(planes):
          copy16(memory, base, ${stage} + to + ${p * a_bytes + block * t.bk * 128 + i * step_k * 128}, from + (a_at + ${block * 64}${f" + {p} * PLACES_PLANE" if p else ""}), real & (a_c + ${block * 64} < PLACES_CHANNELS));
% endfor
% endfor
        }
% if form.flat:
        global const ushort *from = b + (INDEX)q * SOURCE_W;
% else:
        ${form.split("q", "COUNT", form.along("o"), "image")}
% for axis in form.axes:
        const int i${letters[axis]} = o${letters[axis]} * STEP_${capitals[axis]} + ORIGIN_${capitals[axis]};
% endfor
        global const ushort *from = b + ((INDEX)image * SOURCE_IMAGE + ${form.summand(form.along("i"), "SOURCE")});
% endif
% for block in range(t.bn // 64):
        {
          const int ok = real & real_b${block}${"".join(f" & ((uint)(i{letters[axis]}{f' + shift_{letters[axis]}{block}' if axis in form.tapped else ''}) < (uint)SIZE_{capitals[axis]})" for axis in form.guarded)};
% for p in range(planes):
          copy16(memory, base, ${stage} + to + ${planes * a_bytes + p * b_bytes + block * t.bk * 128 + i * step_k * 128}, from + (b_at${block}${f" + {p} * SOURCE_PLANE" if p else ""}), ok);
% endfor
        }
% endfor
      }
% endfor
</%def>
<%def name="fetch(slice, stage)">\
% if t.window:
${fetch_weight_slice(slice, stage)}\
% elif form.data:
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
