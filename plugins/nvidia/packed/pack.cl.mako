## Tensors as planes of 16-bit numbers: sources channels last, [image][pixel][plane][group][chunks of 8 channels], and
## weights in the slices that a work group of ``product`` copies as they lie in its local memory.
##
## One launch packs several tensors (pieces): each has a range of work groups of 256 items, and its sizes as arguments.
## Scaled formats multiply by the powers of two that ``scales.py`` has found.
##
## format  Format
## bk      k's of a slice
## pieces  SourcePiece or WeightsPiece, see ``packing.py``
## scales  Scales, or None
## tiling  Tiling, where a source is folded, phases are stacked or values scaled; else None
<%
f, problem = format, tiling.problem if tiling else None
native, cr = f.name == "native", bk // 8
type = "ushort" if native else "REAL"
swizzle = "n % 8" if bk == 64 else "n / 2 % 4"
def exponent(name, row, k):
    return scales.exponent(name, "norms", "marks", "group", row, k)
if tiling:
    geo, icg = tiling.geometry, problem.ic // problem.g
stacked = bool(tiling and geo.stacked)
%>\
#define VALUE_TYPE ${"ushort" if native else "float"}
#define FETCH(p, i) ${"((p)[i])" if native else "LOAD(p, i)"}
// Eight values as 16-byte chunks, one a plane.
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
      rest = finite ? rest - widen(part) : 0;  // an infinity has no rest
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
% for piece in pieces:
<% n, fold = piece.name, piece.fold %>\
% if n == "w":
// An item packs eight k's of one row in every tap (where weights are few, in every ``parts``th). Neighbours take what
// lies nearer: chunks of a row, or (data gradient) rows, whose weights are neighbours where taps or channels are last.
//
// rows, bn     rows in all and of a tile; m of them hold weights
// c8, c        chunks of eight k's of a tap, and k's
// tiles        tiles; slices of a group's; of a phase \`\`of\`\`, and those of the phases \`\`before\`\` it
// row, k, tap  elements from weight to weight; group: from group to group
inline void pack_w(global const ${type} *w, global ushort *packed, uint id, global const int *norms, global const int *marks, local uint4 *turn, ${piece.declared}) {
% if piece.by_row:
  const uint above = DIVIDED(id, w_rows), more = DIVIDED(above, w_c8);
  const int row = id - above * w_rows, q = above - more * w_c8;
% else:
  const uint above = DIVIDED(id, w_c8), more = DIVIDED(above, w_rows);
  const int q = id - above * w_c8, row = above - more * w_rows;
% endif
  const int part = DIVIDED(more, w_groups), group = more - part * w_groups;
  if (part >= w_parts) return;
  const int n_tile = DIVIDED(row, w_bn), n = row - n_tile * w_bn, slice_size = w_bn * ${bk * f.planes};
  packed += ((long)group * w_slices * w_tiles + n_tile) * slice_size + n * ${bk};
% for number, taps, first in piece.taps:
<%
volume = taps[0] * taps[1] * taps[2]
several = any(size == f"of{number}" for size, _ in piece.sizes)
before, of = (f"w_before{number} + ", f"w_of{number}") if several else ("", "w_slices")
%>\
  for (int tap = part; tap < ${volume}; tap += w_parts) {
    const int z = tap / ${taps[1] * taps[2]} * ${piece.tap_step[0]} + ${first[0]};
    const int y = tap / ${taps[2]} % ${taps[1]} * ${piece.tap_step[1]} + ${first[1]};
    const int x = tap % ${taps[2]} * ${piece.tap_step[2]} + ${first[2]};
    VALUE_TYPE v[8];
% if stacked:
<%
phases, place = geo.stacked, geo.phases[0].origin
numbers = [(f"row / {icg * phases[1] * phases[2]}", problem.pd, problem.sd, problem.dd, problem.kd, "z", place[0]),
           (f"row / {icg * phases[2]} % {phases[1]}", problem.ph, problem.sh, problem.dh, problem.kh, "y", place[1]),
           (f"row / {icg} % {phases[2]}", problem.pw, problem.sw, problem.dw, problem.kw, "x", place[2])]
%>\
    // The kernel's tap with which this row's phase reads here, if there is one.
% for phase, pad, stride, dilation, kernel, letter, origin in numbers:
    const int n${letter} = ${phase} + ${pad} - (${letter} + (${origin})) * ${stride}, k${letter} = n${letter} / ${dilation};
% endfor
    const int has = ${" & ".join(f"(n{letter} >= 0 & n{letter} % {dilation} == 0 & k{letter} < {kernel})" for _, _, _, dilation, kernel, letter, _ in numbers)};
% endif
<%
kz, ky, kx = ("kz", "ky", "kx") if stacked else ("z", "y", f"c / {icg}" if fold else "x")
at_row, at_k = f"row % {icg}" if stacked else "row", f"c % {icg}" if fold else "c"
value = "FETCH(w, from)"
if f.scaled:
    value = f"shifted({value}, {exponent('w', at_row, at_k)})"
%>\
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int c = q * 8 + e;
      const long from = group * w_group + (${at_k}) * w_k + (${at_row}) * w_row + ((${kz} * ${piece.kernel[0]} + ${ky}) * ${piece.kernel[1]} + ${kx}) * w_tap;
      v[e] = row < w_m && c < w_c${" && has" if stacked else ""} ? ${value} : 0;
    }
% if piece.window:
    const int slice = q / ${cr} * ${volume} + tap, chunk = q % ${cr};
% else:
    const int k = tap * w_c8 + q, slice = ${before}k / ${cr}, chunk = k % ${cr};
% endif
    put8(packed + (long)slice * w_tiles * slice_size + ((chunk ^ ${swizzle}) << 3), v, w_bn * ${bk});
  }
% if not piece.window:
  if (q == 0 && part == 0)
    for (int k = ${volume} * w_c8; k < ${of} * ${cr}; ++k) {
      const VALUE_TYPE v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      const int chunk = k % ${cr};
      put8(packed + (long)(${before}k / ${cr}) * w_tiles * slice_size + ((chunk ^ ${swizzle}) << 3), v, w_bn * ${bk});
    }
% endif
% endfor
}
% else:
<% nhwc = not piece.turn %>\
// Eight channels at one pixel.
//
// pixels       of an image; image: elements of it; places: pixels of all images
// c, c8        channels of a group, and chunks of eight
% if nhwc:
// channels     of all groups
% else:
// own          elements from channel to channel; blocks of ${piece.turn} chunks
% endif
// plane        elements of a packed plane
inline void read8_${n}(VALUE_TYPE *v, global const ${type} *x, int place, int group, int q, global const int *norms, global const int *marks, ${piece.declared}) {
% if nhwc and not fold and not f.scaled:
  x += (long)place * ${n}_channels + (long)group * ${n}_c + q * 8;
% else:
  const int image = DIVIDED(place, ${n}_pixels), pixel = place - image * ${n}_pixels;
  x += image * ${n}_image;
% if fold:
<%
src, own = tiling.source, (problem.ih, problem.iw)
to_channel, to_pixel = (1, problem.ic) if nhwc else (problem.id * own[0] * own[1], 1)
%>\
  x += (long)group * ${icg * to_channel};
  const int column = pixel % ${src.size[2]} * ${problem.sw} - ${problem.pw};
  x += (pixel / ${src.size[2]} * ${own[1]} + column) * ${to_pixel};
% elif nhwc:
  x += (long)pixel * ${n}_channels + (long)group * ${n}_c + q * 8;
% else:
  x += ((long)group * ${n}_c + q * 8) * ${n}_own + pixel;
% endif
% endif
#pragma unroll
% if fold:
  for (int e = 0; e < 8; ++e) {
    const int c = q * 8 + e, shift = c / ${icg} * ${problem.dw};
    v[e] = c < ${n}_c && (uint)(column + shift) < ${own[1]}u ? FETCH(x, (long)(c % ${icg}) * ${to_channel} + shift * ${to_pixel}) : 0;
  }
% else:
<% value = f"FETCH(x, {'e' if nhwc else f'(long)e * {n}_own'})" %>\
  for (int e = 0; e < 8; ++e) v[e] = ${f"q * 8 + e < {n}_c ? {value} : 0" if piece.ragged else value};
% endif
% if f.scaled:
<% channel = f"min(q * 8 + e, {n}_c - 1)" + (f" % {icg}" if fold else ""); row, k = ("image", channel) if tiling.data else (channel, "image") %>\
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = shifted(v[e], ${exponent(n, row, k)});
% endif
}
% if nhwc:
inline void pack_${n}(global const ${type} *x, global ushort *packed, uint id, global const int *norms, global const int *marks, local uint4 *turn, ${piece.declared}) {
  const uint above = DIVIDED(id, ${n}_c8);
  const int place = DIVIDED(above, ${n}_groups), q = id - above * ${n}_c8, group = above - place * ${n}_groups;
  if (place >= ${n}_places) return;
  VALUE_TYPE v[8];
  read8_${n}(v, x, place, group, q, norms, marks, ${piece.handed});
  put8(packed + (long)place * ${n}_plane * ${f.planes} + (group * ${n}_c8 + q) * 8, v, ${n}_plane);
}
% else:
// Channels first: neighbours read neighbouring pixels, change places in local memory, and write neighbouring chunks.
<% wide, places = piece.turn, 256 // piece.turn; inside = f"place < {n}_places" + (f" && q < {n}_c8" if piece.ragged_block else "") %>\
#define TURN_${n} 1
inline void pack_${n}(global const ${type} *x, global ushort *packed, uint id, global const int *norms, global const int *marks, local uint4 *turn, ${piece.declared}) {
  const uint tid = id % 256, unit = id / 256, above = DIVIDED(unit, ${n}_blocks), first = DIVIDED(above, ${n}_groups);
  const int block = unit - above * ${n}_blocks, group = above - first * ${n}_groups;
  const int place = first * ${places} + tid % ${places}, q = block * ${wide} + tid / ${places};
  uint4 chunk[${f.planes}];
  if (${inside}) {
    VALUE_TYPE v[8];
    read8_${n}(v, x, place, group, q, norms, marks, ${piece.handed});
    split8(chunk, v);
#pragma unroll
    for (int p = 0; p < ${f.planes}; ++p) turn[p * 256 + tid % ${places} * ${wide} + (tid / ${places} ^ tid % ${wide})] = chunk[p];
  }
}
inline void write_${n}(global ushort *packed, uint id, local uint4 *turn, ${piece.declared}) {
  const uint tid = id % 256, unit = id / 256, above = DIVIDED(unit, ${n}_blocks), first = DIVIDED(above, ${n}_groups);
  const int block = unit - above * ${n}_blocks, group = above - first * ${n}_groups;
  const int place = first * ${places} + tid / ${wide}, q = block * ${wide} + tid % ${wide};
  if (${inside})
#pragma unroll
    for (int p = 0; p < ${f.planes}; ++p)
      *(global uint4 *)(packed + ((long)place * ${f.planes} + p) * ${n}_plane + (group * ${n}_c8 + q) * 8) = turn[p * 256 + tid / ${wide} * ${wide} + (tid % ${wide} ^ tid / ${wide} % ${wide})];
}
% endif
% endif
% endfor
<% args = ", ".join(f"global const {type} *restrict {p.name}_from, global ushort *restrict {p.name}_to" for p in pieces) %>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void pack(${args}${", global const int *restrict norms" if f.scaled else ""}, ${", ".join(f"const int {p.name}_begin, const int {p.name}_end, const long {p.name}_at, {p.declared}" for p in pieces)}) {
  const int tid = get_local_id(0);
  const int group = get_group_id(0);
  local uint4 turn[${256 * f.planes}];
  // A group's piece is the last whose range begins before it. No group returns before the barrier: PoCL 3 loses guards.
% for p in pieces:
  if (group >= ${p.name}_begin && group < ${p.name}_end)
    pack_${p.name}(${p.name}_from, ${p.name}_to + ${p.name}_at, (uint)(group - ${p.name}_begin) * 256u + tid, ${f"norms, (global const int *){p.name}_to" if f.scaled else "0, 0"}, turn, ${p.handed});
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
% for p in pieces:
#ifdef TURN_${p.name}
  if (group >= ${p.name}_begin && group < ${p.name}_end) write_${p.name}(${p.name}_to + ${p.name}_at, (uint)(group - ${p.name}_begin) * 256u + tid, turn, ${p.handed});
#endif
% endfor
}
