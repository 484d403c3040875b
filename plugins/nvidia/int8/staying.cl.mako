## What ``stream.cl.mako`` and ``halo.cl.mako`` share: work groups that stay, fed by the copy engine; their barriers and maps, the
## weights' way into local memory, and what comes before a tile's sums leave.
<%namespace name="results" file="results.cl.mako"/>\
<%def name="macros()">\
<% t = tiling.tile %>\
${results.macros()}\
#define LBO 16
#define SBO ${8 * t.bk}
#define B_LBO LBO
#define B_SBO SBO
% if not emulate:
constant ulong MAPS[32] = {${", ".join(f"{word:#x}UL" for one in encoded for word in one)}};
% else:
// What the copy engine does with the maps, in plain C: all work items copy.
inline void put_swizzled(local uchar *memory, uint to, int row, int c, uchar v) {
  const int place = row * ${t.bk} + c;
  memory[to + (place ^ (place >> 7 & ${7 if t.bk == 128 else 3}) << 4)] = v;
}
inline void copy_box2(local uchar *memory, global const uchar *w, uint to, int c0, int c1) {
  for (int i = get_local_id(0); i < ${t.bn // t.cluster * t.bk}; i += get_local_size(0))
    put_swizzled(memory, to, i / ${t.bk}, i % ${t.bk}, w[(long)(c1 + i / ${t.bk}) * ${tiling.row_bytes} + c0 + i % ${t.bk}]);
}
#define COPY_BOX2(map, to, c0, c1, bar) copy_box2(memory, map, to, 2 * (c0), c1)
#define prefetch_line(at)
% endif
</%def>\
## The kernel's head. copiers: warps that copy.
<%def name="head(copiers)">\
<% t = tiling.tile %>\
kernel __attribute__((reqd_work_group_size(${t.items + (0 if emulate else 32 * copiers)}, 1, 1)))
void product(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, global uchar *workspace, TABLE_PARAMS) {
  local uint4 area[${(tiling.local_bytes + 15) // 16}] __attribute__((aligned(1024)));
  local uchar *memory = (local uchar *)area;
  local uint *offsets = (local uint *)(memory + ${tiling.numbers_at});
  local float *multipliers = (local float *)(offsets + ${t.bn});
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int first = get_group_id(0) / ${t.cluster}, step = get_num_groups(0) / ${t.cluster}, rank = get_group_id(0) % ${t.cluster};
  w += w_at;
</%def>\
## Every slot's barriers: ``full`` counts what one warp says that it copies, ``empty`` warps that have read. shared: slots of
## weights, from which all of the cluster read.
<%def name="barriers(own, shared)">\
<% t = tiling.tile %>\
  const uint bars = base + ${tiling.bars_at}, sharing = ${"cluster_size()" if t.cluster > 1 else 1};
  if (tid == 0) {
#pragma unroll
    for (int i = 0; i < ${own + shared}; ++i) {
      barrier_init(bars + i * 16, 1);
      barrier_init(bars + i * 16 + 8, ${t.wm * 4} * ${"sharing" if own == 0 else f"(i < {own} ? 1 : sharing)"});
    }
    barriers_visible();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
% if t.cluster > 1:
  cluster_meets();
% endif
</%def>\
## A copying warp's own maps: of x, and of packed weights.
<%def name="maps(copier)">\
      global ulong *maps = (global ulong *)(workspace + get_group_id(0) * ${tiling.maps_each} + ${256 * copier});
#pragma unroll
      for (int i = 0; i < 32; ++i) maps[i] = MAPS[i];
      map_address(maps, (global const ushort *)x);
      map_address(maps + 16, (global const ushort *)w);
      maps_visible(maps);
      const ulong MAP_A = (ulong)maps, MAP_B = (ulong)(maps + 16);
</%def>\
## Weights of a slice, k pairs from the row's begin, for the work group's channels; of a cluster each copies a part to all.
<%def name="weights(to, k)">\
<%
t = tiling.tile
part = t.bn // t.cluster
def box(rank): return f"MAP_B, {to} + {rank} * {part * t.bk}, {k}, group * {tiling.rows} + n0 + {rank} * {part}, full"
%>\
% if t.cluster > 1 and not emulate:
          if (sharing > 1) {
            COPY_BOX2_TO(${box("rank")}, ${(1 << t.cluster) - 1});
          } else {
% for i in range(t.cluster):
            COPY_BOX2(${box(i)});
% endfor
          }
% else:
% for i in range(t.cluster):
          COPY_BOX2(${box(i)});
% endfor
% endif
</%def>\
## This warp has read a slice of weights.
<%def name="release(bar)">\
% if tiling.tile.cluster > 1:
if (lane < sharing) barrier_release_at(${bar}, lane);
% else:
if (lane == 0) barrier_release(${bar});
% endif
</%def>\
## Nobody copies to a work group of the cluster, or tells one, that is gone.
<%def name="foot()">\
% if tiling.tile.cluster > 1 and not emulate:
  cluster_meets();
% endif
}
</%def>\
## The next slot of a ring.
<%def name="advance(bytes, slots, first)">\
          at += ${bytes};
          bar += 16;
          if (bar == bars + ${16 * (first + slots)}) {
            at -= ${bytes * slots};
            bar -= ${16 * slots};
            parity ^= 1;
          }
</%def>\
<%def name="multiplying()">\
<% t = tiling.tile %>\
    const int m_warp = warp * 16, n_warp = 0, x_zero = X_ZERO(table);
    int held = -1;
    const uint a_from = warp / 4 * ${64 * t.bk};
    global const int *sums_of_w = (global const int *)(w + ${tiling.packed_rows * tiling.row_bytes});
    int sum[${t.frag_n * 4}];
#pragma unroll
    for (int i = 0; i < ${t.frag_n * 4}; ++i) sum[i] = 0;
${results.words()}\
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
## Where a tap lies outside of x the copy engine put zeros, which stand for x_zero: what the sum of all weights took of that tap
## is given back. row, column: of x, of a place's first tap, text.
<%def name="give_back(row, column)">\
<% t = tiling.tile %>\
% if not tiling.inside:
      if (x_zero) {
% for half in range(2):
        {
          const int h = ${row(half)}, v = ${column(half)};
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
