## What ``stream.cl.mako`` and ``halo.cl.mako`` share: work groups that stay, fed by the copy engine; their barriers and maps, and
## what comes before a tile's sums leave.
<%namespace name="results" file="results.cl.mako"/>\
<%def name="macros()">\
<% t = tiling.tile %>\
${results.macros()}\
#define LBO 16
#define SBO ${8 * t.bk}
#define B_LBO LBO
#define B_SBO SBO
% if tiling.sets > 1:
constant int ROW_SET[OH] = {${", ".join(map(str, tiling.set_of[0]))}}, COLUMN_SET[OW] = {${", ".join(map(str, tiling.set_of[1]))}};
% endif
% if not emulate:
constant ulong MAPS[32] = {${", ".join(f"{word:#x}UL" for one in encoded for word in one)}};
% endif
</%def>\
<%def name="head()">\
<% t = tiling.tile %>\
kernel __attribute__((reqd_work_group_size(${t.items + (0 if emulate else tiling.copying_items)}, 1, 1)))
void product(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, global uchar *workspace, TABLE_PARAMS) {
  local uint4 area[${(tiling.local_bytes + 15) // 16}] __attribute__((aligned(1024)));
  local uchar *memory = (local uchar *)area;
  local uint *offsets = (local uint *)(memory + ${tiling.numbers_at});
  local float *multipliers = (local float *)(offsets + ${tiling.sets * t.bn});
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int first = get_group_id(0), step = get_num_groups(0);
  w += w_at;
</%def>\
## Every slot's barriers: ``full`` counts what one warp says that it copies, ``empty`` warps that have read.
<%def name="barriers(slots)">\
  const uint bars = base + ${tiling.bars_at};
  if (tid == 0) {
#pragma unroll
    for (int i = 0; i < ${slots}; ++i) {
      barrier_init(bars + i * 16, 1);
      barrier_init(bars + i * 16 + 8, ${tiling.tile.wm * 4});
    }
    barriers_visible();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
</%def>\
## How many registers a work item of the copying (0) or of the multiplying warps (1) has from here on.
<%def name="registers(multiplying)">\
% if tiling.moved_registers:
    REGISTERS_${"GROW" if multiplying else "SHRINK"}(${tiling.moved_registers[multiplying]});
% endif
</%def>\
## A copying warp's own maps: of x, and of packed weights.
<%def name="maps(copier)">\
      global ulong *maps = (global ulong *)(workspace + get_group_id(0) * ${tiling.maps_each} + ${256 * copier});
#pragma unroll
      for (int i = 0; i < 32; ++i) maps[i] = MAPS[i];
      map_address(maps, (global const ushort *)x);
      map_address(maps + 16, (global const ushort *)w);
      map_visible(maps);
      map_visible(maps + 16);
      const ulong MAP_A = (ulong)maps, MAP_B = (ulong)(maps + 16);
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
    const int m_warp = warp * 16, n_warp = 0;
    int held = -1;
    const uint a_from = warp / 4 * ${64 * t.bk};
    global const int *sums_of_w = (global const int *)(w + ${tiling.packed_rows * tiling.row_bytes});
    ACC sum[${t.frag_n * 4 // tiling.column_groups}]${f", total[{t.frag_n * 4}]" if tiling.promotes else ""};
#pragma unroll
    for (int i = 0; i < ${t.frag_n * 4 // tiling.column_groups}; ++i) sum[i] = 0;
${results.words()}\
</%def>\
## A loop of few slices is not unrolled: float8's sums are in two sets of registers, and spilled.
<%def name="rolled()">\
% if tiling.float8:
#pragma unroll 1
% endif
</%def>\
## A slice's products. Those of several groups of columns share registers, so each group's are added before the next begins.
<%def name="products(multiply)">\
% for group in range(tiling.column_groups):
        WGMMA_BEGIN();
${multiply(group)}\
        WGMMA_COMMIT();
% if tiling.column_groups > 1:
        wgmma_finish(sum);
${results.promoted(group)}\
% endif
% endfor
</%def>\
## What follows the last products before their sums leave the tensor cores.
<%def name="added()">\
% if tiling.column_groups == 1:
${results.promoted(0)}\
% endif
</%def>\
## The same after each step of ``halo``, whose float8's sums always leave.
<%def name="step_added()">\
% if tiling.float8 and tiling.column_groups == 1:
        wgmma_finish(sum);
${results.promoted(0)}\
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
${results.zeroed()}\
</%def>\
