## The offsets of the elements that a work item reads of A and B, and the first tap.
<%def name="place(o)">\
  // This item's first place in a slice of ${o.letter.upper()}; its other slots are constant offsets from it.
  const int ${o.letter}_k = (tid % ${o.kf} + ${o.kf} * (tid / ${o.kf * o.xl})) * ${o.vk};
  const int ${o.letter}_x = tid / ${o.kf} % ${o.xl} * ${o.vx};
</%def>
% if f.data:
${place(b)}\
  a += ((long)group * SLICES_ALL${" + before" if f.phased else ""}) * PACKED_SLICE + ((long)m_tile * slices + slice) * ${bk * bm} + tid * 4;
  global const ACC *a_from = a;
  b += (long)group * SOURCE_CHANNELS * SOURCE_CHANNEL${"" if f.run else " + (long)b_k * SOURCE_CHANNEL"};
% for x in range(b.x_slots):
  INDEX at${x};
% if any(f.guarded):
  int ${", ".join(f"{names[axis]}{x}" for axis in axes if f.guarded[axis])};
% endif
  {
    // Places beyond the last are read as the last; their sums are not written.
    const int n = min(n0 + b_x + ${x * b.x_step}, n_end - ${b.vx}), image = ${divided("n", places)}, pixel = n - image * ${places};
% if f.pointwise:
    at${x} = (INDEX)image * SOURCE_IMAGE + (INDEX)pixel * SOURCE_X;
% else:
${pixel_of("pixel", True)}\
    const int iz = pixel_z * STEP_Z + ${origin[0]}, iy = pixel_y * STEP_Y + ${origin[1]}, ix = pixel_x * STEP_X + ${origin[2]};
    at${x} = (INDEX)image * SOURCE_IMAGE + (INDEX)iz * SOURCE_Z + (INDEX)iy * SOURCE_Y + (INDEX)ix * SOURCE_X;
% for axis in axes:
% if f.guarded[axis]:
    ${names[axis]}${x} = i${names[axis]};
% endif
% endfor
% endif
  }
% if masked:
  uint inside${x} = 0;
% for k in range(bk):
<% tests = [f"(uint)({names[axis]}{x} + {slot_tap(k)[axis]} * SPREAD_{capitals[axis]}) < SIZE_{capitals[axis]}" for axis in axes if f.guarded[axis] and not f.walked[axis]] %>\
  if (${" && ".join(tests)}) inside${x} |= ${1 << k}u;
% endfor
% endif
% endfor
  int channel = 0${"".join(f", tap_{names[axis]} = 0" for axis in axes if f.walked[axis])};
% if f.partial:
  {
    int left = slice;
% for axis in (2, 1, 0):
% if f.walked[axis]:
    tap_${names[axis]} = left % max(1, ${taps[axis]});
    left /= max(1, ${taps[axis]});
% endif
% endfor
    channel = left * ${1 if f.run else bk};
  }
% endif
% else:
${place(f.a)}\
${place(b)}\
  const int a_c = m0 + a_x;
  const INDEX a_at = ((INDEX)group * TARGET_CHANNELS + a_c) * TARGET_CHANNEL;
% if f.flat:
  const INDEX b_at = (INDEX)group * SOURCE_CHANNELS * SOURCE_CHANNEL;
% for x in range(b.x_slots):
  const int b_n${x} = n_tile * ${bn} + b_x + ${x * b.x_step};
% if f.source_nhwc:
  const int b_tap${x} = DIVIDED(b_n${x}, SOURCE_CHANNELS), b_c${x} = b_n${x} - b_tap${x} * SOURCE_CHANNELS;
% else:
  const int b_c${x} = DIVIDED(b_n${x}, KERNEL), b_tap${x} = b_n${x} - b_c${x} * KERNEL;
% endif
  const int row${x} = DIVIDED(b_tap${x}, KERNEL_X), plane${x} = DIVIDED(row${x}, KERNEL_Y);
  const int b_z${x} = plane${x} * SPREAD_Z, b_y${x} = (row${x} - plane${x} * KERNEL_Y) * SPREAD_Y, b_x${x} = (b_tap${x} - row${x} * KERNEL_X) * SPREAD_X;
  const INDEX b_at${x} = (INDEX)b_c${x} * SOURCE_CHANNEL + (INDEX)b_z${x} * SOURCE_Z + (INDEX)b_y${x} * SOURCE_Y + (INDEX)b_x${x} * SOURCE_X;
% endfor
% else:
  const int tap = DIVIDED(n_tile, CHUNKS_N), n0 = (n_tile - tap * CHUNKS_N) * ${bn}, b_c = n0 + b_x;
  const int row_of_taps = DIVIDED(tap, KERNEL_X), plane_of_taps = DIVIDED(row_of_taps, KERNEL_Y);
  const int shift_z = plane_of_taps * SPREAD_Z, shift_y = (row_of_taps - plane_of_taps * KERNEL_Y) * SPREAD_Y, shift_x = (tap - row_of_taps * KERNEL_X) * SPREAD_X;
  const INDEX b_at = ((INDEX)group * SOURCE_CHANNELS + b_c) * SOURCE_CHANNEL;
% endif
% endif
## Splits ``pixel`` into coordinates in the grid of output pixels; ``phased``: of the work group's phase.
<%def name="pixel_of(pixel, of_phase)">\
% if f.phased and of_phase:
    const int pixel_z = ${pixel} / (count_y * count_x), rest = ${pixel} % (count_y * count_x), pixel_y = rest / count_x, pixel_x = rest % count_x;
% elif f.planar:
    const int pixel_z = 0, pixel_y = DIVIDED(${pixel}, COUNT_X), pixel_x = ${pixel} - pixel_y * COUNT_X;
% else:
    const int pixel_z = DIVIDED(${pixel}, PLANE), rest = ${pixel} - pixel_z * PLANE, pixel_y = DIVIDED(rest, COUNT_X), pixel_x = rest - pixel_y * COUNT_X;
% endif
</%def>
