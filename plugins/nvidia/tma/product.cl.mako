## C[m, n] = sum over k of A[m, k] B[k, n] on Hopper's tensor cores, from 16-bit tensors where they lie, channels last.
##
## Data (forward, data gradient of stride 1): m = place, n = target channel, k = blocks of 64 channels of tap after tap.
## Weights: m = target channel, n = blocks of 64 source channels of tap after tap, k = place.
##
## One warp copies and the others multiply. The copying warp tells the copy engine (TMA) boxes of two tensor maps: it
## gathers the places of a tap by itself, puts zeros where they lie outside, and swizzles. A slice of local memory is
## handed over by two barriers: ``full`` counts bytes that arrived, ``empty`` warps that have read. Work groups stay:
## the copies of the next tile are in flight while a tile's sums leave.
##
## bm, bn   tile of a work group; each group of four warps multiplies 64 rows by all columns
## stages   slices in local memory
## split    parts of the sum over k, which end in the workspace
##
## Sources: NVIDIA, PTX ISA, sections on cp.async.bulk.tensor, mbarrier and wgmma.
<%
t, geo = job.tile, job.walk
p = geo.phases[0]
data = job.data
stage_bytes, a_bytes, stages = job.stage_bytes, job.a_bytes, t.stages
rows = 64 * t.wm
warps = t.wm * 4
sums = t.frag_n * 4
m_end = job.n_places if data else geo.m
box = job.gathered
boxes = job.column_boxes
box_bytes = job.b_bytes // boxes
k_a, k_b = (32 if data else 2048), (2048 if job.turned_weights or not data else 32)
%>\
#define LBO 8192
#define SBO 1024
#define B_LBO LBO
#define B_SBO SBO
<%def name="tile_of()">\
    const int n_tile = tile % ${job.n_tiles}, m_tile = tile / ${job.n_tiles} % ${job.m_tiles};
    const int part = tile / ${job.n_tiles * job.m_tiles} % ${t.split}, group = tile / ${job.n_tiles * job.m_tiles * t.split};
    const int m0 = m_tile * ${t.bm}, n0 = n_tile * ${t.bn};
    const int begin = ${f"(int)((long){job.slices[0]} * part / {t.split})" if t.split > 1 else 0}, end = ${f"(int)((long){job.slices[0]} * (part + 1) / {t.split})" if t.split > 1 else job.slices[0]};
</%def>
<%def name="start_of(place)">\
<% ow, oh = p.count[2], p.count[1] %>\
      const int image = ${place} / ${p.places}, pixel = ${place} % ${p.places};
      const int h = pixel / ${ow} * ${geo.step[1]} + (${job.low[1]}), w = pixel % ${ow} * ${geo.step[2]} + (${job.low[2]});
</%def>
<%def name="copies()">\
% if data:
      const int tap = slice / ${job.blocks}, channel = slice % ${job.blocks} * 64;
      const int ky = tap / ${p.taps[2]}, kx = tap % ${p.taps[2]};
      COPY_IM2COL(MAP_A, at, group * ${geo.c} + channel, w, h, image, ${job.offset(2, "kx")}, ${job.offset(1, "ky")}, full);
% if job.turned_weights:
      const int kernel_tap = (ky * ${geo.tap_step[1]} + ${p.tap0[1]}) * ${geo.kernel[2]} + kx * ${geo.tap_step[2]} + ${p.tap0[2]};
#pragma unroll
      for (int i = 0; i < ${boxes}; ++i)
        COPY_BOX3(MAP_B, at + ${a_bytes} + i * ${box_bytes}, n0 + i * 64, kernel_tap, group * ${geo.c} + channel, full);
% else:
      COPY_BOX3(MAP_B, at + ${a_bytes}, channel, tap, group * ${geo.m} + n0, full);
% endif
% else:
#pragma unroll
      for (int i = 0; i < ${t.wm}; ++i)
        COPY_BOX2(MAP_A, at + i * 8192, group * ${geo.m} + m0 + i * 64, slice * 64, full);
${start_of("(slice * 64)")}\
#pragma unroll
      for (int i = 0; i < ${boxes}; ++i) {
        const int q = min(n0 / 64 + i, ${p.volume * job.blocks - 1});
        const int tap = q / ${job.blocks}, ky = tap / ${p.taps[2]}, kx = tap % ${p.taps[2]};
        COPY_IM2COL(MAP_B, at + ${a_bytes} + i * ${box_bytes}, group * ${geo.c} + q % ${job.blocks} * 64, w, h, image, ${job.offset(2, "kx")}, ${job.offset(1, "ky")}, full);
      }
% endif
</%def>
<%def name="multiply(at)">\
% for k in range(4):
      WGMMA(sum, ${at} + a_from + ${k * k_a}, ${at} + ${a_bytes + k * k_b}, ${"add" if k == 0 else 1});
% endfor
</%def>
<%def name="write_sums()">\
    // Four lanes hold two neighbouring columns each of four groups of eight: they exchange until each has eight.
% for half in (0, 1):
    {
      const int m = m0 + wg * 64 + warp % 4 * 16 + lane / 4 + ${half * 8};
% for j in range(0, t.frag_n, 4):
      {
        float v[8];
        EIGHT(v, ${", ".join(f"sum[{(j + i) * 4 + half * 2 + e}]" for i in range(4) for e in range(2))});
        const int n = n0 + ${j * 8} + lane % 4 * 8;
% if data:
        if (m < ${m_end} & n < ${geo.m})
          put8(OUT_ARGS, v, ${f"(OUT_INDEX)part * {job.partial_elements} + " if t.split > 1 else ""}(OUT_INDEX)m * ${geo.m * geo.groups} + group * ${geo.m} + n, group * ${geo.m} + n);
% else:
        const int q = n / 64, tap = q / ${job.blocks}, c = q % ${job.blocks} * 64 + n % 64;
        if (m < ${m_end} & tap < ${p.volume} & c < ${geo.c})
          put8(OUT_ARGS, v, ((OUT_INDEX)(${f"part * {geo.groups} + " if t.split > 1 else ""}group) * ${geo.m} + m) * ${job.n} + tap * ${geo.c} + c, 0);
% endif
      }
% endfor
    }
% endfor
</%def>
% if not emulate:
constant ulong MAPS[32] = {${", ".join(f"{word:#x}UL" for one in encoded for word in one)}};
kernel __attribute__((reqd_work_group_size(${warps * 32 + 32}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b, global uchar *workspace, OUT_PARAMS) {
  local uint4 area[${(job.local_bytes + 15) // 16}] __attribute__((aligned(1024)));
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory), bars = base + ${stage_bytes * stages};
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
      map_address(maps, a);
      map_address(maps + 16, b);
      maps_visible(maps);
      const ulong MAP_A = (ulong)maps, MAP_B = (ulong)(maps + 16);
      uint at = 0, bar = bars, phase = 1;
      for (int tile = first; tile < ${job.tiles}; tile += step) {
${tile_of()}\
% if data:
${start_of("m0")}\
% endif
        for (int slice = begin; slice < end; ++slice) {
          barrier_wait(bar + 8, phase);
          const uint full = bar;
          barrier_expect(full, ${stage_bytes});
${copies()}\
          at += ${stage_bytes};
          bar += 16;
          if (at == ${stage_bytes * stages}) {
            at = 0;
            bar = bars;
            phase ^= 1;
          }
        }
      }
    }
  } else {
    const int wg = warp / 4;
    const uint a_from = wg * 8192;
    uint at = 0, bar = bars, phase = 0;
    float sum[${sums}];
#pragma unroll
    for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
    for (int tile = first; tile < ${job.tiles}; tile += step) {
${tile_of()}\
      uint last = 0;
      int add = 0;
      for (int slice = begin; slice < end; ++slice) {
        barrier_wait(bar, phase);
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
          phase ^= 1;
        }
      }
      wgmma_finish(sum);
      if (lane == 0) barrier_release(last);
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
  const uint a_from = wg * 8192, at = 0, full = 0;
  global const ushort *MAP_A = a, *MAP_B = b;
  float sum[${sums}];
  for (int tile = get_group_id(0); tile < ${job.tiles}; tile += get_num_groups(0)) {
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
${write_sums()}\
  }
}
% endif
