## C[m, n] = sum over k of A[m, k] B[k, n] on Hopper's tensor cores, from tensors in place, channels last: 16-bit ones,
## or float32 ones, of which the copy engine leaves TF32's bits.
##
## Data (forward, data gradient): m = place, n = target channel, k = blocks of channels of tap after tap. The data
## gradient of a stride has phases, one after another, whose places have neighbours a stride away.
## Weights: m = target channel, n = blocks of 64 source channels of tap after tap, k = place.
##
## One warp copies and the others multiply. The copying warp tells the copy engine (TMA) boxes of two tensor maps: it
## gathers the places of a tap by itself, puts zeros where they are outside, and swizzles. A slice of local memory is
## handed over by two barriers: ``full`` counts bytes that arrived, ``empty`` warps that have read. Work groups stay:
## the copies of the next tile are in flight while a tile's sums leave.
##
## bm, bn   tile of a work group; each group of four warps multiplies 64 rows by all columns
## stages   slices in local memory
## split    parts of the sum over k, which end in the workspace
## fixup    work groups of this launch add them, 32 columns after 32 columns; see ``parts.cl.mako``
##
## Sources: NVIDIA, PTX ISA, sections on cp.async.bulk.tensor, mbarrier and wgmma.
<%
t, geo = tiling.tile, tiling.geometry
phases, many = tiling.phases, len(tiling.phases) > 1
low_h, low_w = tiling.low[1:]
count_h, count_w = tiling.count
volume = geo.phases[0].volume
empty = t.split > min(tiling.slices) or not min(tiling.slices)
data = tiling.data
stage_bytes, a_bytes, stages = tiling.stage_bytes, tiling.a_bytes, t.stages
rows = 64 * t.wm
warps = t.wm * 4
sums = t.frag_n * 4
m_end = tiling.n_places if data else geo.m
unit = tiling.row_bytes
columns = t.bn // 32
addend = tiling.problem.residual and not tiling.partial and not many
lines = -(-t.bn * tiling.itemsize // 128)
run = tiling.run
frags, exchange, own = (2, "FOUR", "lane % 2 * 8 + lane / 2 % 2 * 4") if run == 4 else (4, "EIGHT", "lane % 4 * 8")
rows_bytes = 64 * unit
tile_sums = t.bm * t.bn // 4
states_at = partial_at + tiling.sums * t.split * tile_sums * 16
box = tiling.gathered
boxes = tiling.column_boxes
box_bytes = tiling.b_box_bytes
# Boxes that are outside are slow, all work groups' together: the last tile's columns begin earlier, and are not written twice.
ragged = data and geo.m > t.bn and geo.m % t.bn
sbo_a, sbo_b = 8 * unit, 8 * tiling.b_row_bytes
k_a, k_b = (32 if data else 2048), (16 * tiling.b_row_bytes if tiling.transposed_weights or not data else 32)
def of(name, axis=None):
    """A phase's number."""
    value = getattr(phases[0], name)
    if not many:
        return value if axis is None else value[axis]
    fields = ["slices", "taps_w", "tap0", "offset", "first", "count"]
    place = sum(1 if f in ("slices", "taps_w") else 2 for f in fields[: fields.index(name)]) + (axis or 0)
    return f"PHASES[phase * 10 + {place}]"
def numbers(phase):
    return (phase.slices, phase.taps_w, *phase.tap0, *phase.offset, *phase.first, *phase.count)
%>\
#define LBO 8192
#define SBO ${sbo_a}
#define B_LBO ${box_bytes}
#define B_SBO ${sbo_b}
% if many:
// Of each phase: slices, taps along w, the first tap, how far it reads, the first place that is written, places.
constant int PHASES[${10 * len(phases)}] = {${", ".join(str(n) for phase in phases for n in numbers(phase))}};
% endif
<%def name="tile_of()">\
    const int n_tile = tile % ${tiling.n_tiles}, m_tile = tile / ${tiling.n_tiles} % ${tiling.m_tiles};
    const int part = tile / ${tiling.n_tiles * tiling.m_tiles} % ${t.split}, group = tile / ${tiling.n_tiles * tiling.m_tiles * t.split}${f" % {geo.groups}" if many else ""};
% if many:
    const int phase = tile / ${tiling.n_tiles * tiling.m_tiles * t.split * geo.groups};
% endif
    const int m0 = m_tile * ${t.bm}, n0 = ${f"min(n_tile * {t.bn}, {max(0, geo.m - t.bn)})" if data else f"n_tile * {t.bn}"};
    const int begin = ${f"(int)((long){of('slices')} * part / {t.split})" if t.split > 1 else 0}, end = ${f"(int)((long){of('slices')} * (part + 1) / {t.split})" if t.split > 1 else of('slices')};
</%def>
<%def name="start_of(place)">\
      const int image = ${place} / ${count_h * count_w}, pixel = ${place} % ${count_h * count_w};
      const int h = pixel / ${count_w} * ${geo.step[1]} + (${low_h}), w = pixel % ${count_w} * ${geo.step[2]} + (${low_w});
</%def>
<%def name="copies()">\
% if data:
      const int tap = slice / ${tiling.blocks}, channel = slice % ${tiling.blocks} * ${t.bk};
      const int ky = tap / ${of("taps_w")}, kx = tap % ${of("taps_w")};
      COPY_IM2COL(MAP_A, at, group * ${geo.c} + channel, w, h, image, ${of("offset", 1)} + kx * (${geo.spread[2]}), ${of("offset", 0)} + ky * (${geo.spread[1]}), full);
% if tiling.transposed_weights or tiling.rewritten_weights:
      const int kernel_tap = (ky * ${geo.tap_step[1]} + ${of('tap0', 0)}) * ${geo.kernel[2]} + kx * ${geo.tap_step[2]} + ${of('tap0', 1)};
% endif
% if tiling.transposed_weights:
#pragma unroll
      for (int i = 0; i < ${boxes}; ++i)
        COPY_BOX3(MAP_B, at + ${a_bytes} + i * ${box_bytes}, n0 + i * 64, kernel_tap, group * ${geo.c} + channel, full);
% else:
      COPY_BOX3(MAP_B, at + ${a_bytes}, channel, ${"kernel_tap" if tiling.rewritten_weights else "tap"}, group * ${geo.m} + n0, full);
% endif
% else:
#pragma unroll
      for (int i = 0; i < ${t.wm}; ++i)
        COPY_BOX2(MAP_A, at + i * ${rows_bytes}, group * ${geo.m} + m0 + i * 64, slice * 64, full);
${start_of("(slice * 64)")}\
#pragma unroll
      for (int i = 0; i < ${boxes}; ++i) {
        const int q = min(n0 / ${tiling.block} + i, ${volume * tiling.blocks - 1});
        const int tap = q / ${tiling.blocks}, ky = tap / ${phases[0].taps_w}, kx = tap % ${phases[0].taps_w};
        COPY_IM2COL(MAP_B, at + ${a_bytes} + i * ${box_bytes}, group * ${geo.c} + q % ${tiling.blocks} * ${tiling.block}, w, h, image, kx * ${geo.spread[2]}, ky * ${geo.spread[1]}, full);
      }
% endif
</%def>
<%def name="multiply(at)">\
% for k in range(unit // 32 if data else t.bk // 16):
      WGMMA(sum, ${at} + a_from + ${k * k_a}, ${at} + ${a_bytes + k * k_b}, ${"add" if k == 0 else 1});
% endfor
</%def>
<%def name="column_of(j, first)">\
        const int n = n0 + ${first} + ${j * 8} + ${own};
        const int kept = ${"exists" if many else f"m < {m_end}"} & n < ${geo.m}${f" & n >= n_tile * {t.bn}" if ragged else ""};
        const OUT_INDEX to = ${f"(OUT_INDEX)part * {tiling.partial_elements} + " if tiling.partial else ""}(OUT_INDEX)${"place" if many else "m"} * ${geo.m * geo.groups} + group * ${geo.m} + n;
</%def>
<%def name="write_columns(name, count, first)">\
    // Four lanes hold two neighbouring columns each of every group of eight: they exchange until each has ${run}, 16 bytes,
    // and together whole sectors of the cache.
% for half in (0, 1):
    {
      const int m = m0 + wg * 64 + warp % 4 * 16 + lane / 4 + ${half * 8};
% if many:
      const int row = m / ${count_w} % ${count_h}, column = m % ${count_w};
      const int exists = m < ${m_end} & row < ${of("count", 0)} & column < ${of("count", 1)};
      const OUT_INDEX place = (OUT_INDEX)(m / ${count_h * count_w} * ${geo.target[1]} + row * ${geo.out_step[1]} + ${of("first", 0)}) * ${geo.target[2]} + column * ${geo.out_step[2]} + ${of("first", 1)};
% endif
% for batch in tiling.batches(half, count // frags) if addend else [range(count // frags)]:
% if addend:
      RAW${run} addend${batch[0]}[${len(batch)}];
% for number in batch:
      {
${column_of(number * frags, first)}\
        addend${batch[0]}[${number - batch[0]}] = raw${run}(residual + (kept ? to : 0));
      }
% endfor
% endif
% for j in (number * frags for number in batch):
      {
        float v[${run}];
        ${exchange}(v, ${", ".join(f"{name}[{(j + i) * 4 + half * 2 + e}]" for i in range(frags) for e in range(2))});
% if data:
${column_of(j, first)}\
        const int channel = ${f"n % {geo.m // t.pixels}" if t.pixels > 1 else f"group * {geo.m} + n"};
        if (kept) ${f"put{run}_addend(OUT_ARGS, v, addend{batch[0]}[{j // frags - batch[0]}], to, channel)" if addend else f"put{run}(v, to, channel)"};
% else:
        const int n = n0 + ${first} + ${j * 8} + ${own};
        const int q = n / ${tiling.block}, tap = q / ${tiling.blocks}, c = q % ${tiling.blocks} * ${tiling.block} + n % ${tiling.block};
        if (m < ${m_end} & tap < ${volume} & c < ${geo.c})
          put${run}(v, ((OUT_INDEX)(${f"part * {geo.groups} + " if tiling.partial else ""}group) * ${geo.m} + m) * ${tiling.n} + tap * ${geo.c} + c, 0);
% endif
      }
% endfor
% endfor
    }
% endfor
</%def>
<%def name="prefetch_addend()">\
% if addend and t.split == 1:
      // What is added to the sums is on its way to the cache while they are made.
      for (int i = tid; i < ${t.bm * lines}; i += ${t.items}) {
        const int m = m0 + i / ${lines}, n = n0 + i % ${lines} * ${128 // tiling.itemsize};
        if (m < ${m_end} & n < ${geo.m}) prefetch_line(residual + ((OUT_INDEX)m * ${geo.m * geo.groups} + group * ${geo.m} + n));
      }
% endif
</%def>
<%def name="write_sums()">\
% if t.fixup:
    const int whole = ${f"(phase * {geo.groups} + group)" if many else "group"} * ${tiling.n_tiles * tiling.m_tiles} + m_tile * ${tiling.n_tiles} + n_tile;
    global float4 *parts = (global float4 *)(workspace + ${partial_at}L) + (long)whole * ${t.split * tile_sums} + tid;
#pragma unroll
    for (int i = 0; i < ${t.frag_n}; ++i)
      parts[part * ${tile_sums} + i * ${t.items}] = (float4)(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
    warps_meet(${t.items});
    if (tid == 0) arrive(states + whole);
    for (;;) {
      if (tid == 0) *shared = take(states + whole, polls);
      warps_meet(${t.items});
      const int columns = *shared;
      warps_meet(${t.items});
      if (columns < 0) break;
      for (int block = columns; block < (polls ? columns + 1 : ${columns}); ++block) {
      float s[16] = {0};
#pragma unroll 4
      for (int i = 0; i < ${t.split}; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 v = load_written(parts + i * ${tile_sums} + (block * 4 + j) * ${t.items});
          s[j * 4] += v.x, s[j * 4 + 1] += v.y, s[j * 4 + 2] += v.z, s[j * 4 + 3] += v.w;
        }
      }
${write_columns("s", 4, "block * 32")}\
      }
      if (!polls) break;
    }
% else:
${write_columns("sum", t.frag_n, 0)}\
% endif
</%def>
<%def name="begin_sums()">\
% if t.fixup:
  global ulong *states = (global ulong *)(workspace + ${states_at}L);
  const int polls = ${tiling.tiles} <= get_num_groups(0) ? POLLS : 0;
% endif
</%def>
% if not emulate:
constant ulong MAPS[32] = {${", ".join(f"{word:#x}UL" for one in encoded for word in one)}};
kernel __attribute__((reqd_work_group_size(${warps * 32 + 32}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b, global uchar *workspace, OUT_PARAMS) {
  local uint4 area[${(tiling.local_bytes + 15) // 16}] __attribute__((aligned(1024)));
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory), bars = base + ${stage_bytes * stages};
  local int *shared = (local int *)(memory + ${(stage_bytes + 16) * stages});
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int first = get_group_id(0), step = get_num_groups(0);
  if (tid == 0) {
#pragma unroll
    for (int i = 0; i < ${stages}; ++i) {
      barrier_init(bars + i * 16, 1);
      barrier_init(bars + i * 16 + 8, ${warps});
    }
    barriers_visible();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warp == ${warps}) {
    if (lane == 0) {
      global ulong *maps = (global ulong *)(workspace + ${maps_at} + get_group_id(0) * ${maps_each});
#pragma unroll
      for (int i = 0; i < 32; ++i) maps[i] = MAPS[i];
      map_address(maps, a + A_AT);
      map_address(maps + 16, b + B_AT);
      maps_visible(maps);
      const ulong MAP_A = (ulong)maps, MAP_B = (ulong)(maps + 16);
      uint at = 0, bar = bars, parity = 1;
      for (int tile = first; tile < ${tiling.tiles}; tile += step) {
${tile_of()}\
% if data:
${start_of("m0")}\
% endif
        for (int slice = begin; slice < end; ++slice) {
          barrier_wait(bar + 8, parity);
          const uint full = bar;
          barrier_expect(full, ${a_bytes + boxes * box_bytes});
${copies()}\
          at += ${stage_bytes};
          bar += 16;
          if (at == ${stage_bytes * stages}) {
            at = 0;
            bar = bars;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    const int wg = warp / 4;
    const uint a_from = wg * ${rows_bytes};
${begin_sums()}\
    uint at = 0, bar = bars, parity = 0;
    float sum[${sums}];
#pragma unroll
    for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
    for (int tile = first; tile < ${tiling.tiles}; tile += step) {
${tile_of()}\
${prefetch_addend()}\
      uint last = 0;
      int add = 0;
% if t.fixup or empty:
      // Nothing of the last tile's sums stays alive while parts are added.
#pragma unroll
      for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
% endif
      for (int slice = begin; slice < end; ++slice) {
        barrier_wait(bar, parity);
        WGMMA_BEGIN();
${multiply("at")}\
        WGMMA_COMMIT();
        if (add) {
          WGMMA_WAIT(1);
          if (lane == 0) barrier_release(last);
        }
        add = 1;
        last = bar + 8;
        at += ${stage_bytes};
        bar += 16;
        if (at == ${stage_bytes * stages}) {
          at = 0;
          bar = bars;
          parity ^= 1;
        }
      }
      wgmma_finish(sum);
      if (lane == 0${" & add" if empty else ""}) barrier_release(last);
${write_sums()}\
    }
  }
}
% else:
kernel __attribute__((reqd_work_group_size(${warps * 32}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b, global uchar *workspace, OUT_PARAMS) {
  local uint4 area[${stage_bytes // 16}] __attribute__((aligned(1024)));
  local float quads[${warps * 32 * 8}];
  local uchar *memory = (local uchar *)area;
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32, wg = warp / 4;
  const uint a_from = wg * ${rows_bytes}, at = 0, full = 0;
  local int word[1], *shared = word;
${begin_sums()}\
  global const ushort *MAP_A = a + A_AT, *MAP_B = b + B_AT;
  float sum[${sums}];
  for (int tile = get_group_id(0); tile < ${tiling.tiles}; tile += get_num_groups(0)) {
${tile_of()}\
    for (int slice = begin; slice < end; ++slice) {
      const int add = slice > begin;
% if data:
${start_of("m0")}\
% endif
${copies()}\
      barrier(CLK_LOCAL_MEM_FENCE);
${multiply("at")}\
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (begin == end) {
      for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
    }
${write_sums()}\
  }
}
% endif
