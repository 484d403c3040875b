## The start of a work item's copies: its chunk of 16 bytes, its rows, their source pixels, the taps inside the source,
## and the first slice's tap. A part of ``product.cl.mako``.
% if form.data:
  // The work item's chunk of a row, and its rows: their source pixels, and the taps that are inside the source.
  const int chunk = tid % ${cr}, row = tid / ${cr};
  const uint to = row * ${rowb} + ((chunk ^ ${swizzled("row")}) << 4);
  a += (INDEX)group * SOURCE_GROUP;
% if form.weights == "transposed":
  // The work item's chunk of a block of 64 columns, and its rows along k.
  const int b_chunk = tid % 8, b_row = tid / 8;
  const uint b_to = b_row * 128 + ((b_chunk ^ b_row % 8) << 4);
  b += group * WEIGHTS_GROUP + n0 + b_chunk * 8;
% elif form.weights == "rows":
  b += group * WEIGHTS_GROUP + (long)n0 * WEIGHTS_ROW;
% else:
  b += ((long)group * GROUP_SLICES${" + before" if many else ""}) * SLICE_STEP + (long)n_tile * ${weight_slice} + tid * 8;
% endif
% for i in range(0 if t.window else rows_a):
  INDEX at${i};
  uint ok${i} = 0;
  {
    const int n = min(m0 + row + ${i * step_a}, m_end - 1);
% if form.flat:
    at${i} = (INDEX)n * SOURCE_W;
% else:
    ${form.split("n", "COUNT", form.along("o"), "image")}
% for axis in form.axes:
    const int i${letters[axis]} = o${letters[axis]} * STEP_${capitals[axis]} + ${form.number("origin", axis)};
% endfor
    at${i} = (INDEX)image * SOURCE_IMAGE + ${form.summand(form.along("i"), "SOURCE")};
% for axis in form.guarded:
<% at, size, taps, low = f"i{letters[axis]}", f"SIZE_{capitals[axis]}", form.number("taps", axis), f" << LOW_{capitals[axis]}" if axis < 2 else "" %>\
% if form.near:
    {
      const int back = SPREAD_${capitals[axis]} < 0, low = max(0, back ? ${at} - ${size} + 1 : -${at});
      const int inside = min(${taps}, back ? ${at} + 1 : ${size} - ${at}) - low;
      if (inside > 0) ok${i} |= 0xffffffffu >> (32 - inside) << low${low};
    }
% else:
    for (int tap = 0; tap < ${taps}; ++tap) ok${i} |= (uint)((uint)(${at} + tap * SPREAD_${capitals[axis]}) < (uint)${size}) << tap${low};
% endif
% endfor
% endif
  }
% endfor
% if counted:
  // The tap of the next slice to copy, and its block of channels.
  const int begin_tap = DIVIDED(begin, BLOCKS);
  int next_block = begin - begin_tap * BLOCKS;
  ${form.split("begin_tap", "TAPS", form.along("n", False), "").replace("const int", "int")}
% elif chunks_counted:
  // The work item's chunk of the next slice to copy, its place in its tap, and the tap.
  int next_chunk = begin * ${cr} + chunk;
  const int begin_tap = DIVIDED(next_chunk, C8);
  int next_in_tap = next_chunk - begin_tap * C8;
  ${form.split("begin_tap", "TAPS", form.along("n", False), "").replace("const int", "int")}
% endif
% else:
  // The work item's chunk of a block of 64 channels, and its rows, which are output pixels.
  const int chunk = tid % 8, row = tid / 8;
  const uint to = row * 128 + ((chunk ^ row % 8) << 4);
  const int a_c = m0 + chunk * 8;
  const INDEX a_at = (INDEX)group * PLACES_GROUP + a_c;
% for block in range(t.bn // 64):
  const int q${block} = n0 / 8 + ${block * 8} + chunk, real_b${block} = q${block} < DEPTH;
% if form.tapped:
  const int tap${block} = DIVIDED(q${block}, C8);
  ${form.split(f"tap{block}", "KERNEL", [name and f"{name}{block}" for name in form.along("t", False)], "")}
  const INDEX b_at${block} = (INDEX)group * SOURCE_GROUP + (q${block} - tap${block} * C8) * 8 + ${form.summand([name and f"{name}{block}" for name in form.along("t", False)], "TAP")};
% for axis in form.tapped:
  const int shift_${letters[axis]}${block} = t${letters[axis]}${block} * SPREAD_${capitals[axis]};
% endfor
% else:
  const INDEX b_at${block} = (INDEX)group * SOURCE_GROUP + q${block} * 8;
% endif
% endfor
% endif
