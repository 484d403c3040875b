## The start of a work item's copies: its chunk of 16 bytes, its rows, their source pixels, and the taps inside the
## source. A part of ``product.cl.mako``.
% if data:
  // The work item's chunk of a row, and its rows: their source pixels, and the taps that are inside the source.
  const int chunk = tid % ${cr}, row = tid / ${cr};
  const uint to = row * ${rowb} + ((chunk ^ ${swizzled("row")}) << 4);
  a += (long)group * ${src.group};
% if tiling.transposed_weights:
  // The work item's chunk of a block of 64 columns, and its rows along k.
  const int b_chunk = tid % 8, b_row = tid / 8;
  const uint b_to = b_row * 128 + ((b_chunk ^ b_row % 8) << 4);
  b += (long)group * ${geo.c} * ${tiling.weight_strides[0]} + n0 + b_chunk * 8;
% elif tiling.direct_weights:
  b += ((long)group * ${geo.m} + n0) * ${tiling.depth(geo.phases[0]) * 8};
% else:
  b += ((long)group * ${sum(tiling.slices)}${" + before" if many else ""}) * ${tiling.n_tiles * tiling.weight_slice}L + (long)n_tile * ${tiling.weight_slice} + tid * 8;
% endif
% for i in range(0 if t.window else rows_a):
  INDEX at${i};
  uint ok${i} = 0;
  {
    const int n = min(m0 + row + ${i * step_a}, m_end - 1), image = n / ${per}, pixel = n % ${per};
    const int iz = pixel / (${count[1]} * ${count[2]}) * ${geo.step[0]} + (${phase("origin", 0)});
    const int iy = pixel / ${count[2]} % ${count[1]} * ${geo.step[1]} + (${phase("origin", 1)});
    const int ix = pixel % ${count[2]} * ${geo.step[2]} + (${phase("origin", 2)});
    at${i} = (INDEX)image * ${src.image} + (INDEX)iz * ${src.axes[0]} + (INDEX)iy * ${src.axes[1]} + (INDEX)ix * ${src.axes[2]};
<% low = [tiling.tap_bits[1] + tiling.tap_bits[2], tiling.tap_bits[2], 0] %>\
% for axis in axes:
% for tap in range(tiling.tap_bits[axis]):
    ok${i} |= (uint)((uint)(i${names[axis]} + ${tap * geo.spread[axis]}) < ${src.size[axis]}u) << ${low[axis] + tap};
% endfor
% endfor
  }
% endfor
% else:
  // The work item's chunk of a block of 64 channels, and its rows, which are output pixels.
  const int chunk = tid % 8, row = tid / 8;
  const uint to = row * 128 + ((chunk ^ row % 8) << 4);
  const int a_c = m0 + chunk * 8;
  const INDEX a_at = (INDEX)group * ${tiling.places.group} + a_c;
<% k = geo.kernel %>\
% for block in range(t.bn // 64):
  const int q${block} = n0 / 8 + ${block * 8} + chunk, tap${block} = q${block} / ${c8}, real_b${block} = q${block} < depth;
  const int shift_z${block} = tap${block} / ${k[1] * k[2]} * ${geo.spread[0]}, shift_y${block} = tap${block} / ${k[2]} % ${k[1]} * ${geo.spread[1]}, shift_x${block} = tap${block} % ${k[2]} * ${geo.spread[2]};
  const INDEX b_at${block} = (INDEX)group * ${src.group} + q${block} % ${c8} * 8 + (INDEX)shift_z${block} * ${src.axes[0]} + (INDEX)shift_y${block} * ${src.axes[1]} + (INDEX)shift_x${block} * ${src.axes[2]};
% endfor
% endif
