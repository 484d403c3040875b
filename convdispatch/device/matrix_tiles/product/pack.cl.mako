## Packs tensors as planes of 16-bit numbers: sources channels last, [image][pixel][plane][group][chunks of 8 channels],
## and weights in the slices that a work group of ``product`` copies unchanged to local memory.
##
## One launch packs several tensors (pieces): each has a range of work groups of 256 items.
## Scaled formats multiply by the powers of two that the launches of ``scales.py`` compute.
##
## pieces  (name, kind, work groups, offset in 16-bit numbers) of each tensor
## scales  the problem's Scales, or None
<%
t, geo, f = tiling.tile, tiling.geometry, tiling.format
problem = tiling.problem
native = f.name == "native"
nhwc = problem.layout == "nhwc"
icg = problem.ic // problem.g
# Slices of a window hold one block of channels, tap after tap; others run through taps and channels alike.
cr = t.bk // 8
c8 = tiling.weight_chunks
type = "ushort" if native else "REAL"
def exponent(name, row, k):
    return scales.exponent(name, "norms", "marks", ("group", row, k))
w_oc, w_ic, w_tap, w_group = tiling.weight_strides
%>\
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
% for name, kind, groups, at in pieces:
% if kind == "weights":
// A work item packs eight k of one row in every tap, or in every ${tiling.tap_parts}th tap. Neighbouring work items
// read neighbouring weights: chunks of a row, or rows in the data gradient, where these are contiguous.
inline void pack_${name}(global const ${type} *w, global ushort *packed, uint id, global const int *norms, global const int *marks, local uint4 *turn) {
<% rows = tiling.n_tiles * t.bn; by_row = problem.direction == "bwd_data" and not geo.stacked %>\
  const int q = ${f"id / {rows} % {c8}" if by_row else f"id % {c8}"}, row = ${f"id % {rows}" if by_row else f"id / {c8} % {rows}"}, group = id / ${c8 * rows} % ${geo.groups}, part = id / ${c8 * rows * geo.groups};
  if (part >= ${tiling.tap_parts}) return;
  const int n = row % ${t.bn}, n_tile = row / ${t.bn};
  packed += ((long)group * ${sum(tiling.slices)} * ${tiling.n_tiles} + n_tile) * ${tiling.weight_slice} + n * ${t.bk};
% for number, p in enumerate(geo.phases):
% if p.volume:
  for (int tap = part; tap < ${p.volume}; tap += ${tiling.tap_parts}) {
    const int z = tap / ${p.taps[1] * p.taps[2]} * ${geo.tap_step[0]} + ${p.tap0[0]};
    const int y = tap / ${p.taps[2]} % ${p.taps[1]} * ${geo.tap_step[1]} + ${p.tap0[1]};
    const int x = tap % ${p.taps[2]} * ${geo.tap_step[2]} + ${p.tap0[2]};
    VALUE_TYPE v[8];
% if geo.stacked:
<%
parts, place = geo.stacked, geo.phases[0].origin
numbers = [(f"row / {icg * parts[1] * parts[2]}", problem.pd, problem.sd, problem.dd, problem.kd, "z", place[0]),
           (f"row / {icg * parts[2]} % {parts[1]}", problem.ph, problem.sh, problem.dh, problem.kh, "y", place[1]),
           (f"row / {icg} % {parts[2]}", problem.pw, problem.sw, problem.dw, problem.kw, "x", place[2])]
%>\
    // The kernel's tap with which this row's phase reads the source here, if there is one.
% for phase, pad, stride, dilation, kernel, letter, origin in numbers:
    const int n${letter} = ${phase} + ${pad} - (${letter} + (${origin})) * ${stride}, k${letter} = n${letter} / ${dilation};
% endfor
    const int has = ${" & ".join(f"(n{letter} >= 0 & n{letter} % {dilation} == 0 & k{letter} < {kernel})" for _, _, _, dilation, kernel, letter, _ in numbers)};
% endif
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int c = q * 8 + e;
% if geo.stacked:
      const long from = (long)group * ${w_group} + (long)c * ${w_oc} + (long)(row % ${icg}) * ${w_ic} + ((kz * ${problem.kh} + ky) * ${problem.kw} + kx) * ${w_tap};
% elif geo.fold:
      const long from = (long)group * ${w_group} + (long)row * ${w_oc} + c % ${icg} * ${w_ic} + ((z * ${problem.kh} + y) * ${problem.kw} + c / ${icg}) * ${w_tap};
% elif problem.direction == "fwd":
      const long from = (long)group * ${w_group} + (long)row * ${w_oc} + (long)c * ${w_ic} + ((z * ${problem.kh} + y) * ${problem.kw} + x) * ${w_tap};
% else:
      const long from = (long)group * ${w_group} + (long)c * ${w_oc} + (long)row * ${w_ic} + ((z * ${problem.kh} + y) * ${problem.kw} + x) * ${w_tap};
% endif
      v[e] = row < ${geo.m} && c < ${geo.c}${" && has" if geo.stacked else ""} ? ${"shifted(FETCH(w, from), " + exponent("w", f"row % {icg}" if geo.stacked else "row", f"c % {icg}" if geo.fold else "c") + ")" if f.scaled else "FETCH(w, from)"} : 0;
    }
% if t.window:
    const int slice = q / ${cr} * ${p.volume} + tap, chunk = q % ${cr};
% else:
    const int k = tap * ${c8} + q, slice = ${tiling.before[number]} + k / ${cr}, chunk = k % ${cr};
% endif
    put8(packed + (long)slice * ${tiling.n_tiles * tiling.weight_slice} + ((chunk ^ ${"n % 8" if t.bk == 64 else "n / 2 % 4"}) << 3), v, ${t.bn * t.bk});
  }
% if not t.window:
  if (q == 0 && part == 0)
    for (int k = ${tiling.depth(p)}; k < ${tiling.slices[number] * t.bk // 8}; ++k) {
      const VALUE_TYPE v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      const int chunk = k % ${t.bk // 8};
      put8(packed + (long)(${tiling.before[number]} + k / ${t.bk // 8}) * ${tiling.n_tiles * tiling.weight_slice} + ((chunk ^ ${"n % 8" if t.bk == 64 else "n / 2 % 4"}) << 3), v, ${t.bn * t.bk});
    }
% endif
% endif
% endfor
}
% else:
<%
src = kind
channels = src.groups * (icg if src.fold else src.c)
of_norm = problem.normalised and src.name == "x"
table, passed = (", global const float *norm", ", norm") if of_norm else ("", "")
def fetch(i, channel):
    if not of_norm:
        return f"FETCH(x, {i})"
    at = f"group * {icg} + {channel}"
    return f"narrow(normed(norm, widen(FETCH(x, {i})), {at}))" if native else f"normed(norm, FETCH(x, {i}), {at})"
own = (problem.id, problem.ih, problem.iw) if src.name == "x" else (problem.od, problem.oh, problem.ow)
pixels_own = own[0] * own[1] * own[2]
image_own = channels * pixels_own
step_c, step_p = (1, channels) if nhwc else (pixels_own, 1)
%>\
// A work item packs eight channels of one pixel.
inline void read8_${name}(VALUE_TYPE *v, global const ${type} *x, int place, int group, int q, global const int *norms, global const int *marks${table}) {
  const int image = place / ${src.pixels}, pixel = place % ${src.pixels};
  x += (long)image * ${image_own} + (long)group * ${channels // src.groups * step_c};
% if src.fold:
  const int column = pixel % ${src.size[2]} * ${problem.sw} - ${problem.pw};
  x += (pixel / ${src.size[2]} * ${own[2]} + column) * ${step_p};
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int c = q * 8 + e, shift = c / ${icg} * ${problem.dw};
    v[e] = c < ${src.c} && (uint)(column + shift) < ${own[2]}u ? ${fetch(f"(long)(c % {icg}) * {step_c} + shift * {step_p}", f"c % {icg}")} : 0;
  }
% else:
  x += (long)pixel * ${step_p} + (long)q * ${8 * step_c};
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = ${f"q * 8 + e < {src.c} ? {fetch(f'(long)e * {step_c}', 'q * 8 + e')} : 0" if src.c % 8 else fetch(f"(long)e * {step_c}", "q * 8 + e")};
% endif
% if f.scaled:
<% channel = f"min(q * 8 + e, {src.c - 1})" + (f" % {icg}" if src.fold else ""); row, k = ("image", channel) if tiling.data else (channel, "image") %>\
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = shifted(v[e], ${exponent(name, row, k)});
% endif
}
% if nhwc:
inline void pack_${name}(global const ${type} *x, global ushort *packed, uint id, global const int *norms, global const int *marks, local uint4 *turn${table}) {
  const int q = id % ${src.c8}, group = id / ${src.c8} % ${src.groups}, place = id / ${src.c8 * src.groups};
  if (place >= ${src.images * src.pixels}) return;
  VALUE_TYPE v[8];
  read8_${name}(v, x, place, group, q, norms, marks${passed});
  put8(packed + (long)place * ${src.pixel} + group * ${src.c8 * 8} + q * 8, v, ${src.plane});
}
% else:
// For NCHW: work items read neighbouring pixels, exchange them in local memory, and write neighbouring chunks.
<% wide = src.turn; blocks = -(-src.c8 // wide); places = 256 // wide %>\
#define TURN_${name} 1
inline void pack_${name}(global const ${type} *x, global ushort *packed, uint id, global const int *norms, global const int *marks, local uint4 *turn${table}) {
  const int tid = id % 256, unit = id / 256;
  const int block = unit % ${blocks}, group = unit / ${blocks} % ${src.groups}, first = unit / ${blocks * src.groups} * ${places};
  const int place = first + tid % ${places}, q = block * ${wide} + tid / ${places};
  uint4 chunk[${f.planes}];
  if (place < ${src.images * src.pixels}${f" && q < {src.c8}" if src.c8 % wide else ""}) {
    VALUE_TYPE v[8];
    read8_${name}(v, x, place, group, q, norms, marks${passed});
    split8(chunk, v);
#pragma unroll
    for (int p = 0; p < ${f.planes}; ++p) turn[p * 256 + tid % ${places} * ${wide} + (tid / ${places} ^ tid % ${wide})] = chunk[p];
  }
}
inline void write_${name}(global ushort *packed, uint id, local uint4 *turn) {
  const int tid = id % 256, unit = id / 256;
  const int block = unit % ${blocks}, group = unit / ${blocks} % ${src.groups}, first = unit / ${blocks * src.groups} * ${places};
  const int place = first + tid / ${wide}, q = block * ${wide} + tid % ${wide};
  if (place < ${src.images * src.pixels}${f" && q < {src.c8}" if src.c8 % wide else ""})
#pragma unroll
    for (int p = 0; p < ${f.planes}; ++p)
      *(global uint4 *)(packed + (long)place * ${src.pixel} + p * ${src.plane} + group * ${src.c8 * 8} + q * 8) = turn[p * 256 + tid / ${wide} * ${wide} + (tid % ${wide} ^ tid / ${wide} % ${wide})];
}
% endif
% endif
% endfor
<%
normalises = problem.normalised and any(piece[0] == "x" for piece in pieces)
args = ", ".join(f"global const {type} *restrict {p[0]}_from, global ushort *restrict {p[0]}_to" for p in pieces)
%>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void pack(${args}${", global const int *restrict norms" if f.scaled else ""}${", global const float *restrict norm" if normalises else ""}) {
  const int tid = get_local_id(0);
  const int group = get_group_id(0);
  local uint4 turn[${256 * f.planes}];
  // A work group's piece is the last whose range begins before it. No work item returns before the barrier, because
  // PoCL 3 miscompiles such guards.
<% begin = 0 %>\
% for name, kind, groups, at in pieces:
  if (group >= ${begin} && group < ${begin + groups})
    pack_${name}(${name}_from, ${name}_to + ${at}L, (uint)(group - ${begin}) * 256u + tid, ${f"norms, (global const int *){name}_to" if f.scaled else "0, 0"}, turn${", norm" if normalises and name == "x" else ""});
<% begin += groups %>\
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
<% begin = 0 %>\
% for name, kind, groups, at in pieces:
#ifdef TURN_${name}
  if (group >= ${begin} && group < ${begin + groups}) write_${name}(${name}_to + ${at}L, (uint)(group - ${begin}) * 256u + tid, turn);
#endif
<% begin += groups %>\
% endfor
}
