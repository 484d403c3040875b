## Packs tensors as planes of 16-bit numbers: sources channels last, [image][pixel][plane][group][chunks of 8 channels],
## and weights in the slices that a work group of ``product`` copies unchanged to local memory.
##
## One launch packs several tensors (pieces): each has a range of work groups of 256 items. A name in capitals is a number of
## the geometry, which is an argument; those of a piece end with its number.
## Scaled formats multiply by the powers of two that the launches of ``scales.py`` compute.
##
## form    a ``PackForm``
<%
f = form.format
native = f.name == "native"
type = "ushort" if native else "REAL"
def unit(i):
    return f"((int)get_group_id(0) - BEGIN{i})" if i else "(int)get_group_id(0)"
def within(i):
    low = f"(int)get_group_id(0) >= BEGIN{i} && " if i else ""
    return f"{low}(int)get_group_id(0) < BEGIN{i} + WORK_GROUPS{i}" if i else f"(int)get_group_id(0) < WORK_GROUPS{i}"
def exponent(i, row, k):
    return form.exponents[i].format(norms="norms", marks=f"(global const int *)to{i}", group="group", row=row, k=k)
%>\
#define INDEX ${form.index}
#define VALUE_TYPE ${"ushort" if native else "float"}
#define FETCH(p, i) ${"((p)[i])" if native else "LOAD(p, i)"}
// Writes eight values as one chunk of 16 bytes for each plane.
inline void split8(uint4 *chunk, const VALUE_TYPE *v) {
% if native:
  chunk[0] = (uint4)(v[0] | (uint)v[1] << 16, v[2] | (uint)v[3] << 16, v[4] | (uint)v[5] << 16, v[6] | (uint)v[7] << 16);
% else:
  ushort h[${f.planes}][8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    float rest = v[e];
    const int finite = fabs(rest) <= 3.4028235e38f;
#pragma unroll
    for (int p = 0; p < ${f.planes}; ++p) {
      ushort part = narrow(rest);
% if f.bfloat:
      if (finite && (part & 0x7fff) == 0x7f80) part = (ushort)(as_uint(rest) >> 16);  // rounding up would overflow
% endif
      h[p][e] = part;
      rest = finite ? rest - widen(part) : 0;  // infinity has no remainder
    }
  }
#pragma unroll
  for (int p = 0; p < ${f.planes}; ++p)
    chunk[p] = (uint4)(h[p][0] | (uint)h[p][1] << 16, h[p][2] | (uint)h[p][3] << 16, h[p][4] | (uint)h[p][5] << 16, h[p][6] | (uint)h[p][7] << 16);
% endif
}
inline void put8(global ushort *out, const VALUE_TYPE *v, long plane) {
  uint4 chunk[${f.planes}];
  split8(chunk, v);
#pragma unroll
  for (int p = 0; p < ${f.planes}; ++p) *(global uint4 *)(out + p * plane) = chunk[p];
}
## The source pixel that a work item packs: eight channels of one place, as ``v``.
<%def name="read8(i, p)">\
<%
image = f"DIVIDED(place, PIXELS{i})"
def fetch(at, channel):
    if not p.of_norm:
        return f"FETCH(from{i}, {at})"
    c = f"group * FOLDED{i} + {channel}"
    return f"narrow(normed(norm, widen(FETCH(from{i}, {at})), {c}))" if native else f"normed(norm, FETCH(from{i}, {at}), {c})"
step = "" if form.nhwc else f" * CHANNEL_STEP{i}"
%>\
      VALUE_TYPE v[8];
% if p.fold or not form.nhwc or f.scaled:
      const int image = ${image}, pixel = place - image * PIXELS${i};
% endif
% if p.fold:
      const int line = DIVIDED(pixel, WIDTH${i}), column = (pixel - line * WIDTH${i}) * STRIDE${i} - PAD${i};
      const INDEX at = (INDEX)image * IMAGE${i} + (INDEX)group * GROUP_STEP${i} + (INDEX)(line * OWN_WIDTH${i} + column) * PIXEL_STEP${i};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int c = q * 8 + e, tap = DIVIDED(c, FOLDED${i}), shift = tap * DILATION${i}, channel = c - tap * FOLDED${i};
        v[e] = c < SOURCE${i} && (uint)(column + shift) < (uint)OWN_WIDTH${i} ? ${fetch(f"at + (INDEX)channel{step} + shift * PIXEL_STEP{i}", "channel")} : 0;
      }
% else:
% if form.nhwc:
      const INDEX at = (INDEX)place * PIXEL_STEP${i} + (INDEX)group * GROUP_STEP${i} + q * 8;
% else:
      const INDEX at = (INDEX)image * IMAGE${i} + (INDEX)group * GROUP_STEP${i} + pixel + (INDEX)q * 8${step};
% endif
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = ${f"q * 8 + e < SOURCE{i} ? {fetch(f'at + e{step}', 'q * 8 + e')} : 0" if p.ragged else fetch(f"at + e{step}", "q * 8 + e")};
% endif
% if f.scaled:
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int channel = ${f"min(q * 8 + e, SOURCE{i} - 1)" if p.ragged else "q * 8 + e"}${f", tap = DIVIDED(channel, FOLDED{i}), in_tap = channel - tap * FOLDED{i}" if p.fold else ""};
        v[e] = shifted(v[e], ${exponent(i, *(("image", "in_tap" if p.fold else "channel") if form.data else ("in_tap" if p.fold else "channel", "image")))});
      }
% endif
</%def>
<%def name="pack_nhwc(i, p)">\
    const int id = ${unit(i)} * 256 + tid;
    int rest = DIVIDED(id, CHUNKS${i});
    const int q = id - rest * CHUNKS${i};
    const int place = DIVIDED(rest, GROUPS${i}), group = rest - place * GROUPS${i};
    if (place < PLACES${i}) {
${read8(i, p)}\
      put8(to${i} + AT${i} + (long)place * TO_PIXEL${i} + (group * CHUNKS${i} + q) * 8, v, TO_PLANE${i});
    }
</%def>
## For NCHW: work items read neighbouring pixels, exchange them in local memory, and write neighbouring chunks.
<%def name="turned(i, p)">\
    const int unit = ${unit(i)}, block_row = DIVIDED(unit, BLOCKS${i}), block = unit - block_row * BLOCKS${i};
    const int turn_of_places = DIVIDED(block_row, GROUPS${i}), group = block_row - turn_of_places * GROUPS${i};
</%def>
<%def name="pack_nchw(i, p)">\
<% wide = p.turn; places = 256 // wide %>\
${turned(i, p)}\
    const int place = turn_of_places * ${places} + tid % ${places}, q = block * ${wide} + tid / ${places};
    if (place < PLACES${i} && q < CHUNKS${i}) {
      uint4 chunk[${f.planes}];
${read8(i, p)}\
      split8(chunk, v);
#pragma unroll
      for (int p = 0; p < ${f.planes}; ++p) turn[p * 256 + tid % ${places} * ${wide} + (tid / ${places} ^ tid % ${wide})] = chunk[p];
    }
</%def>
<%def name="write_nchw(i, p)">\
<% wide = p.turn; places = 256 // wide %>\
${turned(i, p)}\
    const int place = turn_of_places * ${places} + tid / ${wide}, q = block * ${wide} + tid % ${wide};
    if (place < PLACES${i} && q < CHUNKS${i})
#pragma unroll
      for (int p = 0; p < ${f.planes}; ++p)
        *(global uint4 *)(to${i} + AT${i} + (long)place * TO_PIXEL${i} + p * TO_PLANE${i} + (group * CHUNKS${i} + q) * 8) = turn[p * 256 + tid / ${wide} * ${wide} + (tid % ${wide} ^ tid / ${wide} % ${wide})];
</%def>
## A work item packs eight k of one row in every tap, or in every so many of TAP_PARTS. Neighbouring work items read
## neighbouring weights: chunks of a row, or rows in the data gradient, where these are contiguous.
<%def name="pack_weights(i)">\
<% w = form.weights %>\
    const int id = ${unit(i)} * 256 + tid, above = DIVIDED(id, INNER${i}), further = DIVIDED(above, OUTER${i}), part = DIVIDED(further, GROUPS${i});
    const int inner = id - above * INNER${i}, outer = above - further * OUTER${i}, group = further - part * GROUPS${i};
    const int row = BY_ROW${i} ? inner : outer, q = BY_ROW${i} ? outer : inner;
    if (part < TAP_PARTS${i}) {
    const int n_tile = DIVIDED(row, BN${i}), n = row - n_tile * BN${i}, swizzle = n >> HALF_ROWS${i} & (SLICE_CHUNKS${i} - 1);
    global ushort *packed = to${i} + AT${i} + (long)group * GROUP_SLICES${i} * SLICE_STEP${i} + (long)n_tile * TILE${i} + n * BK${i};
% if w.phases:
    int before = 0;
% endif
% for taps, tap0 in w.phases or ((None, None),):
<% volume = taps[0] * taps[1] * taps[2] if taps else f"TAPS{i}" %>\
% if volume:
    for (int tap = part; tap < ${volume}; tap += TAP_PARTS${i}) {
% if w.phases:
      const int z = tap / ${taps[1] * taps[2]} * ${w.tap_step[0]} + ${tap0[0]};
      const int y = tap / ${taps[2]} % ${taps[1]} * ${w.tap_step[1]} + ${tap0[1]};
      const int x = tap % ${taps[2]} * ${w.tap_step[2]} + ${tap0[2]};
      const int kernel_tap = (z * ${w.kernel[1]} + y) * ${w.kernel[2]} + x;
% elif w.stacked:
      // The kernel's tap with which this row's phase reads the source here, if there is one.
      const int above_x = DIVIDED(tap, TAPS_W${i}), x = tap - above_x * TAPS_W${i}, z = DIVIDED(above_x, TAPS_H${i}), y = above_x - z * TAPS_H${i};
      const int stack = DIVIDED(row, FOLDED${i}), stack_x = stack % ${w.stacked[2]}, stack_y = stack / ${w.stacked[2]} % ${w.stacked[1]}, stack_z = stack / ${w.stacked[1] * w.stacked[2]};
% for letter, capital in zip("zyx", "DHW"):
      const int n${letter} = stack_${letter} + PAD_${capital}${i} - (${letter} + ORIGIN_${capital}${i}) * STRIDE_${capital}${i}, k${letter} = DIVIDED(n${letter}, DILATION_${capital}${i});
% endfor
      const int has = ${" & ".join(f"(n{letter} >= 0 & n{letter} == k{letter} * DILATION_{capital}{i} & k{letter} < KERNEL_{capital}{i})" for letter, capital in zip("zyx", "DHW"))};
      const int kernel_tap = (kz * KERNEL_H${i} + ky) * KERNEL_W${i} + kx;
% elif not w.fold:
      const int kernel_tap = tap;
% endif
      VALUE_TYPE v[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int c = q * 8 + e;
% if w.stacked:
        const int in_stack = row - stack * FOLDED${i};
        const INDEX from = (INDEX)group * W_GROUP${i} + (INDEX)c * W_OC${i} + (INDEX)in_stack * W_IC${i} + (INDEX)kernel_tap * W_TAP${i};
% elif w.fold:
        const int kernel_x = DIVIDED(c, FOLDED${i}), channel = c - kernel_x * FOLDED${i};
        const INDEX from = (INDEX)group * W_GROUP${i} + (INDEX)row * W_OC${i} + (INDEX)channel * W_IC${i} + (INDEX)(tap * KERNEL_W${i} + kernel_x) * W_TAP${i};
% else:
        const INDEX from = (INDEX)group * W_GROUP${i} + (INDEX)row * ROW_STEP${i} + (INDEX)c * SUMMED_STEP${i} + (INDEX)kernel_tap * W_TAP${i};
% endif
        v[e] = row < TARGET${i} && c < SOURCE${i}${" && has" if w.stacked else ""} ? ${f"shifted(FETCH(from{i}, from), {exponent(i, 'in_stack' if w.stacked else 'row', 'channel' if w.fold else 'c')})" if f.scaled else f"FETCH(from{i}, from)"} : 0;
      }
% if w.window:
      const int block = DIVIDED(q, SLICE_CHUNKS${i}), slice = block * TAPS${i} + tap, chunk = q - block * SLICE_CHUNKS${i};
% else:
      const int k = tap * CHUNKS${i} + q, in_phase = DIVIDED(k, SLICE_CHUNKS${i}), slice = ${"before + " if w.phases else ""}in_phase, chunk = k - in_phase * SLICE_CHUNKS${i};
% endif
      put8(packed + (long)slice * SLICE_STEP${i} + ((chunk ^ swizzle) << 3), v, BN${i} * BK${i});
    }
% if not w.window:
    // The last slice of the taps is filled with zeros.
    const int depth${loop.index} = ${volume} * CHUNKS${i}, past${loop.index} = depth${loop.index} + SLICE_CHUNKS${i} - 1, slices${loop.index} = DIVIDED(past${loop.index}, SLICE_CHUNKS${i});
    if (q == 0 && part == 0)
      for (int k = depth${loop.index}; k < slices${loop.index} * SLICE_CHUNKS${i}; ++k) {
        const VALUE_TYPE v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const int chunk = k - (slices${loop.index} - 1) * SLICE_CHUNKS${i};
        put8(packed + (long)(${"before + " if w.phases else ""}slices${loop.index} - 1) * SLICE_STEP${i} + ((chunk ^ swizzle) << 3), v, BN${i} * BK${i});
      }
% if w.phases:
    before += slices${loop.index};
% endif
% endif
% endif
% endfor
    }
</%def>
<%
normalises = any(p and p.of_norm for p in form.pieces)
args = ", ".join(f"global const {type} *restrict from{i}, global ushort *restrict to{i}" for i in range(len(form.pieces)))
%>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void pack(${args}${", global const int *restrict norms" if f.scaled else ""}${", global const float *restrict norm" if normalises else ""} NUMBERS) {
  const int tid = get_local_id(0);
  local uint4 turn[${256 * f.planes}];
  // A work group's piece is the one in whose range it is. No work item returns before the barrier, because PoCL 3
  // miscompiles such guards.
% for i, p in enumerate(form.pieces):
  if (${within(i)}) {
% if p is None:
${pack_weights(i)}\
% elif form.nhwc:
${pack_nhwc(i, p)}\
% else:
${pack_nchw(i, p)}\
% endif
  }
% endfor
% if not form.nhwc and any(form.pieces):
  barrier(CLK_LOCAL_MEM_FENCE);
% for i, p in enumerate(form.pieces):
% if p is not None:
  if (${within(i)}) {
${write_nchw(i, p)}\
  }
% endif
% endfor
% endif
}
