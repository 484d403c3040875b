## C[m, n] = sum over k of A[m, k] B[k, n]: a work group computes BM x BN of C from BK-deep slices in local memory,
## and B (for the weights' gradient A too) is read from the tensor itself, never stored as a matrix.
##
## Data (forward, data gradient): m = output channel, n = (image, place), k = (channel, tap); A is packed in slices.
## Weights: m = output channel, n = (tap, channel) or (channel, tap), k = (image, place).
##
## BM, BN, BK  tile of a work group, and the depth of its slices
## TM, TN      tile of a work item, in quads of 4 that lie 4 * BM / TM rows and 4 * BN / TN columns apart, so that
##             neighbours read neighbouring 16 bytes of local memory
## LN          work items of a warp (32) along n; 32 / LN along m
## ORDER       order of the multiply-adds of a step: rows, snake, parity
## STAGES      2: the next slice goes into local memory while this one is multiplied; 1: half the local memory
## SPLIT       parts of the sum over k, which end in the workspace
<%
t, geo = p.tile, p.geometry
bm, bn, bk, items = t.bm, t.bn, t.bk, t.items
rows, columns = bm // t.tm, bn // t.tn
warp_n = min(t.ln, columns)
warp_m = max(1, min(32 // warp_n, rows))
quads_m, quads_n = t.tm // 4, t.tn // 4
size = p.accsize
axes = range(3)
names = "zyx"
many = len(geo.phases) > 1
def phase(field, axis):
    return f"{field}_{names[axis]}" if many else str(getattr(geo.phases[0], field)[axis])
def some(field):
    return [max(getattr(f, field)[axis] for f in geo.phases) for axis in axes]
src, steps = geo.source, geo.source.axes
b = p.b
%>\
typedef ACC4 __attribute__((aligned(${4 * size}))) quad;
#define INDEX ${p.index}
#define SPLIT ${p.split}
% if many:
// first, count, taps, origin along d, h, w; slices of A before this phase's, and its slices.
constant int PHASES[${len(geo.phases)}][14] = {
% for number, f in enumerate(geo.phases):
  {${", ".join(map(str, (*f.first, *f.count, *f.taps, *f.origin, p.slices_before[number], p.slices[number])))}},
% endfor
};
% endif
<%def name="place(o)">\
  // This item's first place in a slice of ${o.letter.upper()}; its other slots lie literal steps further.
  const int ${o.letter}_k = (tid % ${o.kf} + ${o.kf} * (tid / ${o.kf * o.xl})) * ${o.vk};
  const int ${o.letter}_x = tid / ${o.kf} % ${o.xl} * ${o.vx};
</%def>
<%def name="keep(o, stage)"><% l = o.letter %>\
% for x in range(o.x_slots):
% for k in range(o.k_slots):
      {
        local ACC *to = s${l} + ${stage} + (${l}_k + ${k * o.k_step}) * ${o.pitch} + ${l}_x + ${x * o.x_step};
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
<%def name="keep_packed(stage)">\
% for s in range(p.a_slots):
      ${f"if (tid + {s * items} < {bk * bm // 4}) " if (s + 1) * items > bk * bm // 4 else ""}*(local quad *)(sa + ${stage} + (tid + ${s * items}) * 4) = a_next${s};
% endfor
</%def>
<%def name="fetch_packed()">\
% for s in range(p.a_slots):
      a_next${s} = ${f"tid + {s * items} < {bk * bm // 4} ? " if (s + 1) * items > bk * bm // 4 else ""}*(global const quad *)(a_from + ${s * items * 4})${" : (ACC4)(0)" if (s + 1) * items > bk * bm // 4 else ""};
% endfor
      a_from += ${bk * bm};
</%def>
<%def name="fetch_source()">\
## Data: places are fixed, the channel and the tap move from slice to slice.
      {
% for axis in axes:
% if p.walked[axis]:
        const int shift_${names[axis]} = tap_${names[axis]} * ${geo.spread[axis]};
% endif
% endfor
        const INDEX shift = (INDEX)channel * ${src.channel}${"".join(f" + shift_{names[axis]} * (INDEX){steps[axis]}" for axis in axes if p.walked[axis])};
% for x in range(b.x_slots):
<%
checks = []
for axis in axes:
    if not p.guarded[axis] or (p.taps_in_slice and not p.walked[axis]): continue
    moved = f" + shift_{names[axis]}" if p.walked[axis] else ""
    checks.append(f"(uint)({names[axis]}{x}{moved}) < {src.size[axis]}")
masked = p.taps_in_slice and any(p.guarded[axis] and not p.walked[axis] for axis in axes)
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
if p.c_ragged: guards.append(f"channel + b_k + {k * b.k_step} < {geo.c}")
offset = p.slot_offset(k) if p.taps_in_slice else k * b.k_step * src.channel
value = f"LOAD4(from{x} + {offset})" if b.vec else f"LOAD(from{x}, {offset})"
%>\
        b_next${x}_${k} = ${f"({' && '.join(guards)}) ? {value} : ({b.type})(0)" if guards else value};
% endfor
% endfor
      }
<% walked = [axis for axis in (2, 1, 0) if p.walked[axis]] %>\
% for axis in walked:
      if (++tap_${names[axis]} == ${phase("taps", axis)}) {
        tap_${names[axis]} = 0;
% endfor
      channel += ${1 if p.taps_in_slice else bk};
      ${"}" * len(walked)}
</%def>
<%def name="fetch_places(o, source, tensor, guarded)"><% l = o.letter %>\
## Weights: channels (and taps) are fixed, the places move from slice to slice.
% for k in range(o.k_slots):
      {
        const int q = slice * ${bk} + ${l}_k + ${k * o.k_step};
<% checks = [f"q < {p.n_places}"] if p.n_places % bk else [] %>\
        const int image = q / ${geo.target.pixels}, pixel = q % ${geo.target.pixels};
% if not source or geo.pointwise:
        const INDEX at = (INDEX)image * ${tensor.image} + (INDEX)pixel * ${tensor.axes[2]};
% else:
<%
size_out = geo.target.size
div = ["0" if size_out[0] == 1 else f"pixel / {size_out[1] * size_out[2]}",
       f"pixel / {size_out[2]}" + (f" % {size_out[1]}" if size_out[0] > 1 else ""), f"pixel % {size_out[2]}"]
shifts = [f" + shift_{names[axis]}" if not p.flat else "" for axis in axes]
%>\
% for axis in axes:
        const int i${names[axis]} = (${div[axis]}) * ${geo.step[axis]} + (${geo.phases[0].origin[axis]})${shifts[axis]};
% if p.guarded[axis] and not p.flat:
<% checks.append(f"(uint)i{names[axis]} < {src.size[axis]}") %>\
% endif
% endfor
        const INDEX at = (INDEX)image * ${tensor.image}${"".join(f" + (INDEX)i{names[axis]} * {tensor.axes[axis]}" for axis in axes)};
% endif
% if checks:
        const int ok = ${" && ".join(checks)};
% endif
        global const REAL *from = ${l} + (at + ${l}_at);
% for x in range(o.x_slots):
<%
guards = ["ok"] if checks else []
if p.flat and source:
    offset = f"b_at{x}"
    if p.n % bn: guards.append(f"b_n{x} < {p.n}")
    guards += [f"(uint)(i{names[axis]} + b_{names[axis]}{x}) < {src.size[axis]}" for axis in axes if p.guarded[axis]]
else:
    offset = x * o.x_step * tensor.channel
    if guarded: guards.append(f"{l}_c + {x * o.x_step} < {guarded}")
value = f"LOAD4(from + {offset})" if o.vec else f"LOAD(from, {offset})"
%>\
        ${l}_next${x}_${k} = ${f"({' && '.join(guards)}) ? {value} : ({o.type})(0)" if guards else value};
% endfor
      }
% endfor
</%def>
<%def name="fetch()">\
% if p.data:
${fetch_packed()}\
${fetch_source()}\
% else:
${fetch_places(p.a, False, geo.target, geo.m if geo.m % bm else 0)}\
${fetch_places(p.b, True, src, geo.c if geo.c % bn else 0)}\
% endif
</%def>
<%def name="keep_all(stage_a, stage_b)">\
% if p.data:
${keep_packed(stage_a)}\
% else:
${keep(p.a, stage_a)}\
% endif
${keep(p.b, stage_b)}\
</%def>
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const ${"ACC" if p.data else "REAL"} *restrict a, global const REAL *restrict b, OUT_PARAMS) {
  local ACC sa[${t.stages * bk * p.a_pitch}] __attribute__((aligned(${4 * size})));
  local ACC sb[${t.stages * bk * b.pitch}] __attribute__((aligned(${4 * size})));
  const int tid = get_local_id(0), warp = tid / ${warp_m * warp_n}, lane = tid % ${warp_m * warp_n};
  const int tx = warp % ${columns // warp_n} * ${warp_n} + lane % ${warp_n}, ty = warp / ${columns // warp_n} * ${warp_m} + lane / ${warp_n};
  int rest = get_group_id(0);
  const int m_tile = rest % ${p.m_tiles};
  rest /= ${p.m_tiles};
  const int n_tile = rest % ${p.n_tiles};
  rest /= ${p.n_tiles};
  const int part = rest % SPLIT;
  rest /= SPLIT;
  const int number = rest % ${len(geo.phases)}, group = rest / ${len(geo.phases)};
  const int m0 = m_tile * ${bm};
% if many:
  constant int *row = PHASES[number];
  const int ${", ".join(f"{field}_{names[axis]} = row[{3 * i + axis}]" for i, field in enumerate(("first", "count", "taps", "origin")) for axis in axes)};
  const int before = row[12], slices = row[13];
  const int places = count_z * count_y * count_x, n_end = places * ${geo.images};
% else:
  const int slices = ${p.slices[0]}, n_end = ${p.n};
% endif
% if p.data:
  const int n0 = n_tile * ${bn};
% endif
  // The parts share the slices evenly.
  int slice = ${"0" if p.split == 1 else "(int)((long)slices * part / SPLIT)"};
<% last = "slices" if p.split == 1 else "(int)((long)slices * (part + 1) / SPLIT)" %>\
% if many:
  // Smaller phases need fewer groups. Those left over add nothing and write nothing; they do not return, because PoCL 3
  // loses the writes' guards when a group returns before a barrier.
  const int last = n0 < n_end ? ${last} : slice;
% else:
  const int last = ${last};
% endif
% if p.data:
${place(b)}\
  a += ((long)group * ${p.slices_all}${" + before" if many else ""}) * ${p.m_tiles * bk * bm} + ((long)m_tile * slices + slice) * ${bk * bm} + tid * 4;
  global const ACC *a_from = a;
  b += (long)group * ${geo.c} * ${src.channel}L + (long)b_k * ${0 if p.taps_in_slice else src.channel};
% for s in range(p.a_slots):
  ACC4 a_next${s};
% endfor
<% count = [phase("count", axis) for axis in axes]; per = "places" if many else str(geo.phases[0].places) %>\
% for x in range(b.x_slots):
  INDEX at${x};
% if any(p.guarded):
  int ${", ".join(f"{names[axis]}{x}" for axis in axes if p.guarded[axis])};
% endif
  {
    // Places beyond the last are read as the last; their sums are not written.
    const int n = min(n0 + b_x + ${x * b.x_step}, n_end - ${b.vx}), image = n / ${per}, pixel = n % ${per};
% if geo.pointwise:
    at${x} = (INDEX)image * ${src.image} + (INDEX)pixel * ${steps[2]};
% else:
    const int iz = pixel / (${count[1]} * ${count[2]}) * ${geo.step[0]} + (${phase("origin", 0)});
    const int iy = pixel / ${count[2]} % ${count[1]} * ${geo.step[1]} + (${phase("origin", 1)});
    const int ix = pixel % ${count[2]} * ${geo.step[2]} + (${phase("origin", 2)});
    at${x} = (INDEX)image * ${src.image} + (INDEX)iz * ${steps[0]} + (INDEX)iy * ${steps[1]} + (INDEX)ix * ${steps[2]};
% for axis in axes:
% if p.guarded[axis]:
    ${names[axis]}${x} = i${names[axis]};
% endif
% endfor
% endif
  }
% if p.taps_in_slice and any(p.guarded[axis] and not p.walked[axis] for axis in axes):
  uint inside${x} = 0;
% for k in range(bk):
<% tap = p.slot_tap(k); tests = [f"(uint)({names[axis]}{x} + {tap[axis] * geo.spread[axis]}) < {src.size[axis]}" for axis in axes if p.guarded[axis] and not p.walked[axis]] %>\
  if (${" && ".join(tests)}) inside${x} |= ${1 << k}u;
% endfor
% endif
% endfor
  int channel = 0${"".join(f", tap_{names[axis]} = 0" for axis in axes if p.walked[axis])};
% if p.split > 1:
  {
    int left = slice;
% for axis in (2, 1, 0):
% if p.walked[axis]:
    tap_${names[axis]} = left % max(1, ${phase("taps", axis)});
    left /= max(1, ${phase("taps", axis)});
% endif
% endfor
    channel = left * ${1 if p.taps_in_slice else bk};
  }
% endif
% else:
${place(p.a)}\
${place(b)}\
<% chunks = -(-geo.c // bn) %>\
  const int a_c = m0 + a_x;
  const INDEX a_at = ((INDEX)group * ${geo.m} + a_c) * ${geo.target.channel};
% if p.flat:
  const INDEX b_at = (INDEX)group * ${geo.c * src.channel};
% for x in range(b.x_slots):
  const int b_n${x} = n_tile * ${bn} + b_x + ${x * b.x_step};
<%
div_tap, div_c = (f"b_n{x} % {geo.volume}", f"b_n{x} / {geo.volume}") if not src.nhwc else (f"b_n{x} / {geo.c}", f"b_n{x} % {geo.c}")
kz, ky, kx = geo.kernel
%>\
  const int b_z${x} = (${div_tap}) / ${ky * kx} * ${geo.spread[0]}, b_y${x} = (${div_tap}) / ${kx} % ${ky} * ${geo.spread[1]}, b_x${x} = (${div_tap}) % ${kx} * ${geo.spread[2]};
  const INDEX b_at${x} = (INDEX)(${div_c}) * ${src.channel} + (INDEX)b_z${x} * ${steps[0]} + (INDEX)b_y${x} * ${steps[1]} + (INDEX)b_x${x} * ${steps[2]};
% endfor
% else:
  const int tap = n_tile / ${chunks}, n0 = n_tile % ${chunks} * ${bn}, b_c = n0 + b_x;
<% kz, ky, kx = geo.kernel %>\
  const int shift_z = tap / ${ky * kx} * ${geo.spread[0]}, shift_y = tap / ${kx} % ${ky} * ${geo.spread[1]}, shift_x = tap % ${kx} * ${geo.spread[2]};
  const INDEX b_at = ((INDEX)group * ${geo.c} + b_c) * ${src.channel};
% endif
% for x in range(p.a.x_slots):
% for k in range(p.a.k_slots):
  ${p.a.type} a_next${x}_${k};
% endfor
% endfor
% endif
% for x in range(b.x_slots):
% for k in range(b.k_slots):
  ${b.type} b_next${x}_${k};
% endfor
% endfor
% for q in range(quads_m):
% for r in range(4):
  ACC4 ${", ".join(f"c{q}_{r}_{n} = (ACC4)(0)" for n in range(quads_n))};
% endfor
% endfor
  if (slice < last) {
${fetch()}\
${keep_all("0", "0")}\
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int stage = 0;
  for (++slice; slice <= last; ++slice) {
    if (slice < last) {
${fetch()}\
    }
    {
      local const ACC *la = sa + stage * ${bk * p.a_pitch} + ty * 4, *lb = sb + stage * ${bk * b.pitch} + tx * 4;
${p.unroll}
      for (int k = 0; k < ${bk}; ++k) {
% for q in range(quads_m):
        const ACC4 a${q} = *(local const quad *)(la + k * ${p.a_pitch} + ${q * (bm // quads_m)});
% endfor
% for n in range(quads_n):
        const ACC4 b${n} = *(local const quad *)(lb + k * ${b.pitch} + ${n * (bn // quads_n)});
% endfor
% for m, n in p.steps:
        c${m // 4}_${m % 4}_${n // 4}.s${n % 4} = a${m // 4}.s${m % 4} * b${n // 4}.s${n % 4} + c${m // 4}_${m % 4}_${n // 4}.s${n % 4};
% endfor
      }
    }
% if t.stages == 2:
    stage ^= 1;
    if (slice < last) {
${keep_all(f"stage * {bk * p.a_pitch}", f"stage * {bk * b.pitch}")}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
% else:
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice < last) {
${keep_all("0", "0")}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
% endif
  }
% if p.data:
  const OUT_INDEX c_at = ${f"(OUT_INDEX)part * {p.out_size}" if p.split > 1 else "0"};
% for n in range(quads_n):
% for lane in ((0,) if p.out_vector == "n" else range(4)):
  OUT_INDEX to${n}_${lane};
  const int n${n}_${lane} = n0 + tx * 4 + ${n * (bn // quads_n) + lane};
  {
    const int n = min(n${n}_${lane}, n_end - 1), image = n / ${per}, pixel = n % ${per};
% if p.out_plain:
    to${n}_${lane} = c_at + (OUT_INDEX)image * ${geo.target.image} + (OUT_INDEX)pixel * ${geo.target.axes[2]};
% else:
    to${n}_${lane} = c_at + (OUT_INDEX)image * ${geo.target.image}
        + (OUT_INDEX)(pixel / (${count[1]} * ${count[2]}) * ${geo.out_step[0]} + ${phase("first", 0)}) * ${geo.target.axes[0]}
        + (OUT_INDEX)(pixel / ${count[2]} % ${count[1]} * ${geo.out_step[1]} + ${phase("first", 1)}) * ${geo.target.axes[1]}
        + (OUT_INDEX)(pixel % ${count[2]} * ${geo.out_step[2]} + ${phase("first", 2)}) * ${geo.target.axes[2]};
% endif
  }
% endfor
% endfor
% for q in range(quads_m):
% if p.out_vector == "m":
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m)}, row = group * ${geo.m} + m;
    if (m < ${geo.m}) {
% for n in range(quads_n):
% for lane in range(4):
      if (n${n}_${lane} < n_end) put4(OUT_ARGS, (ACC4)(${", ".join(f"c{q}_{r}_{n}.s{lane}" for r in range(4))}), to${n}_${lane} + row, row);
% endfor
% endfor
    }
  }
% else:
% for r in range(4):
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m) + r}, row = group * ${geo.m} + m;
    if (m < ${geo.m}) {
% for n in range(quads_n):
% if p.out_vector == "n":
      if (n${n}_0 < n_end) put4(OUT_ARGS, c${q}_${r}_${n}, to${n}_0 + (OUT_INDEX)row * ${geo.target.channel}, row);
% else:
% for lane in range(4):
      if (n${n}_${lane} < n_end) put(OUT_ARGS, c${q}_${r}_${n}.s${lane}, to${n}_${lane} + (OUT_INDEX)row * ${geo.target.channel}, row);
% endfor
% endif
% endfor
    }
  }
% endfor
% endif
% endfor
% else:
  // Partial sums lie [part][group][m][n], n being (tap, channel), or the weights' own order where taps are flat.
% for q in range(quads_m):
% for r in range(4):
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m) + r};
    if (m < ${geo.m}) {
      global ACC *to = out + (((long)part * ${geo.groups} + group) * ${geo.m} + m) * ${p.n};
% for n in range(quads_n):
      {
        const int n = ${f"n_tile * {bn}" if p.flat else "n0"} + tx * 4 + ${n * (bn // quads_n)};
<% end, base = (p.n, "") if p.flat else (geo.c, f"tap * {geo.c} + ") %>\
% if end % 4 == 0:
        if (n < ${end}) *(global quad *)(to + ${base}n) = c${q}_${r}_${n};
% else:
% for lane in range(4):
        if (n + ${lane} < ${end}) to[${base}n + ${lane}] = c${q}_${r}_${n}.s${lane};
% endfor
% endif
      }
% endfor
    }
  }
% endfor
% endfor
% endif
}
