## y[m, n] = finished(sum over k of A[m, k] B[n, k] - x_zero sum over k of B[n, k]), as ``product.cl.mako`` has it, on Hopper's
## tensor cores, fed by the copy engine.
##
## One warp copies and the others multiply, as in ``tma/product.cl.mako``: boxes of two tensor maps, one of x by taps and one of
## packed weights, in pairs of bytes, which it copies faster than bytes; ``full`` counts bytes that arrived, ``empty`` warps that have read; work groups stay, and the copies of the
## next tile are in flight while a tile's sums leave. Work groups of a cluster multiply other places by the same weights, and each
## copies a part of these to all: a slot is free when all have read it. Where a tap lies outside of x the engine puts zeros, which stand for x_zero:
## places at the border get back what the sum of all weights took of those taps.
<%namespace name="results" file="results.cl.mako"/>\
<%
t, p = tiling.tile, tiling.problem
warps, stage_bytes, stages, cluster = t.wm * 4, tiling.stage_bytes, t.stages, t.cluster
%>\
${results.macros()}\
#define LBO 16
#define SBO ${8 * t.bk}
#define B_LBO LBO
#define B_SBO SBO
<%def name="tile_of()">\
      const int n0 = tile % ${tiling.n_tiles} * ${t.bn}, m0 = (tile / ${tiling.n_tiles} % ${tiling.m_steps} * ${cluster} + rank) * ${t.bm}, group = tile / ${tiling.n_tiles * tiling.m_steps};
</%def>\
<%def name="start_of()">\
<% from_m = "m0" if tiling.m_tiles % cluster == 0 else f"min(m0, {(tiling.m_tiles - 1) * t.bm})" %>\
      const int from = ${from_m}, image = from / (OH * OW), h = from / OW % OH * SH - PH, v = from % OW * SW - PW;
</%def>\
<%def name="copies()">\
        {
          const int tap = slice / ${tiling.blocks}, channel = slice % ${tiling.blocks} * ${t.bk // 2};
          COPY_IM2COL(MAP_A, at, group * ${tiling.c // 2} + channel, v, h, image, tap % KW * DW, tap / KW * DH, full);
<%
part = t.bn // cluster
def box(rank): return f"MAP_B, at + {tiling.a_bytes} + {rank} * {part * t.bk}, slice * {t.bk // 2}, group * {tiling.rows} + n0 + {rank} * {part}, full"
%>\
% if cluster > 1 and not emulate:
          if (sharing > 1) {
            COPY_BOX2_TO(${box("rank")}, ${(1 << cluster) - 1});
          } else {
% for i in range(cluster):
            COPY_BOX2(${box(i)});
% endfor
          }
% else:
% for i in range(cluster):
          COPY_BOX2(${box(i)});
% endfor
% endif
        }
</%def>\
<%def name="multiply()">\
% for k in range(t.bk // 32):
        WGMMA(sum, at + a_from + ${32 * k}, at + ${tiling.a_bytes + 32 * k}, ${"add" if k == 0 else 1});
% endfor
</%def>\
<%def name="give_back()">\
% if not tiling.inside:
      if (x_zero) {
% for half in range(2):
        {
          const int m = m0 + m_warp + lane / 4 + ${8 * half}, h = m / OW % OH * SH - PH, v = m % OW * SW - PW;
          for (int tap = 0; tap < ${tiling.taps}; ++tap) {
            const int row = h + tap / KW * DH, column = v + tap % KW * DW;
            if (row >= 0 & row < IH & column >= 0 & column < IW) continue;
            global const int *part = sums_of_w + (1 + tap) * ${tiling.packed_rows} + group * ${tiling.rows} + n0 + lane % 4 * ${tiling.run};
% for j in range(t.frag_n):
<% n = j * 2 // tiling.run * 4 * tiling.run + j * 2 % tiling.run %>\
            sum[${j * 4 + half * 2}] += x_zero * part[${n}], sum[${j * 4 + half * 2 + 1}] += x_zero * part[${n + 1}];
% endfor
          }
        }
% endfor
      }
% endif
</%def>\
<%def name="release()">\
% if cluster > 1:
if (lane < sharing) barrier_release_at(last, lane);\
% else:
if (lane == 0) barrier_release(last);\
% endif
</%def>\
## The work group's channels are most often those of its tile before.
<%def name="numbers(meet)">\
      if (held != tile % ${tiling.n_tiles} + group * ${tiling.n_tiles}) {
        held = tile % ${tiling.n_tiles} + group * ${tiling.n_tiles};
        ${meet};
${results.numbers()}\
        ${meet};
      }
${results.prefetch()}\
</%def>\
<%def name="beginning(items)">\
  local uchar *memory = (local uchar *)area;
  local uint *offsets = (local uint *)(memory + ${tiling.numbers_at});
  local float *multipliers = (local float *)(offsets + ${t.bn});
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int first = get_group_id(0) / ${cluster}, step = get_num_groups(0) / ${cluster}, rank = get_group_id(0) % ${cluster};
  w += w_at;
</%def>\
<%def name="multiplying()">\
    const int m_warp = warp * 16, n_warp = 0, x_zero = X_ZERO(table);
    int held = -1;
    const uint a_from = warp / 4 * ${64 * t.bk};
    global const int *sums_of_w = (global const int *)(w + ${tiling.packed_rows * tiling.row_bytes});
    int sum[${t.frag_n * 4}];
${results.words()}\
</%def>\
% if not emulate:
constant ulong MAPS[32] = {${", ".join(f"{word:#x}UL" for one in encoded for word in one)}};
% else:
<% box = tiling.source %>\
// What the copy engine does with the maps, in plain C: all work items copy.
inline void put_swizzled(local uchar *memory, uint to, int row, int c, uchar v) {
  const int place = row * ${t.bk} + c;
  memory[to + (place ^ (place >> 7 & ${7 if t.bk == 128 else 3}) << 4)] = v;
}
inline void copy_im2col(local uchar *memory, global const uchar *x, uint to, int c, int w, int h, int n, int ow, int oh) {
  for (int i = get_local_id(0); i < ${t.bm * t.bk}; i += get_local_size(0)) {
    const int r = i / ${t.bk}, e = c + i % ${t.bk};
    const int place = (w + PW) / SW + ((h + PH) / SH + n * ${box.places[1]}) * ${box.places[0]} + r;
    const int column = place % ${box.places[0]} * SW - PW + ow, row = place / ${box.places[0]} % ${box.places[1]} * SH - PH + oh, image = place / ${box.places[0] * box.places[1]};
    const int real = column >= 0 & column < IW & row >= 0 & row < IH & image < MB & e < IC;
    put_swizzled(memory, to, r, i % ${t.bk}, real ? x[((long)(image * IH + row) * IW + column) * IC + e] : 0);
  }
}
inline void copy_box2(local uchar *memory, global const uchar *w, uint to, int c0, int c1) {
  for (int i = get_local_id(0); i < ${t.bn // cluster * t.bk}; i += get_local_size(0))
    put_swizzled(memory, to, i / ${t.bk}, i % ${t.bk}, w[(long)(c1 + i / ${t.bk}) * ${tiling.row_bytes} + c0 + i % ${t.bk}]);
}
#define COPY_IM2COL(map, to, c, w, h, n, ow, oh, bar) copy_im2col(memory, map, to, 2 * (c), w, h, n, ow, oh)
#define COPY_BOX2(map, to, c0, c1, bar) copy_box2(memory, map, to, 2 * (c0), c1)
#define prefetch_line(at)
% endif
kernel __attribute__((reqd_work_group_size(${warps * 32 + (0 if emulate else 32)}, 1, 1)))
void product(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, global uchar *workspace, TABLE_PARAMS) {
  local uint4 area[${(tiling.local_bytes + 15) // 16}] __attribute__((aligned(1024)));
${beginning(0)}\
% if not emulate:
  const uint bars = base + ${tiling.bars_at}, sharing = ${"cluster_size()" if cluster > 1 else 1};
  if (tid == 0) {
#pragma unroll
    for (int i = 0; i < ${stages}; ++i) {
      barrier_init(bars + i * 16, 1);
      barrier_init(bars + i * 16 + 8, ${warps} * sharing);
    }
    barriers_visible();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
% if cluster > 1:
  cluster_meets();
% endif
  if (warp == ${warps}) {
    if (lane == 0) {
      global ulong *maps = (global ulong *)(workspace + ${maps_at} + get_group_id(0) * ${maps_each});
#pragma unroll
      for (int i = 0; i < 32; ++i) maps[i] = MAPS[i];
      map_address(maps, (global const ushort *)x);
      map_address(maps + 16, (global const ushort *)w);
      maps_visible(maps);
      const ulong MAP_A = (ulong)maps, MAP_B = (ulong)(maps + 16);
      uint at = 0, bar = bars, parity = 1;
      for (int tile = first; tile < ${tiling.tiles}; tile += step) {
${tile_of()}\
${start_of()}\
        for (int slice = 0; slice < ${tiling.slices}; ++slice) {
          barrier_wait(bar + 8, parity);
          const uint full = bar;
          barrier_expect(full, ${stage_bytes});
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
${multiplying()}\
    uint at = 0, bar = bars, parity = 0;
#pragma unroll
    for (int i = 0; i < ${t.frag_n * 4}; ++i) sum[i] = 0;
    for (int tile = first; tile < ${tiling.tiles}; tile += step) {
${tile_of()}\
${numbers(f"warps_meet({t.items})")}\
      uint last = 0;
      int add = 0;
      for (int slice = 0; slice < ${tiling.slices}; ++slice) {
        barrier_wait(bar, parity);
        WGMMA_BEGIN();
${multiply()}\
        WGMMA_COMMIT();
        if (add) {
          WGMMA_WAIT(1);
          ${release()}
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
      ${release()}
${give_back()}\
${results.leave()}\
    }
  }
% if cluster > 1:
  cluster_meets();  // nobody copies to or tells one that is gone
% endif
% else:
  const uint at = 0, full = 0;
  global const uchar *MAP_A = x, *MAP_B = w;
${multiplying()}\
  for (int tile = first; tile < ${tiling.tiles}; tile += step) {
${tile_of()}\
${start_of()}\
${numbers("barrier(CLK_LOCAL_MEM_FENCE)")}\
    for (int slice = 0; slice < ${tiling.slices}; ++slice) {
      const int add = slice > 0;
${copies()}\
      barrier(CLK_LOCAL_MEM_FENCE);
${multiply()}\
      barrier(CLK_LOCAL_MEM_FENCE);
    }
${give_back()}\
${results.leave()}\
  }
% endif
}
