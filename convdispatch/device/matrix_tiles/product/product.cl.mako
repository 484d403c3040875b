## C[m, n] = sum over k of A[m, k] B[k, n] on tensor cores, from 16-bit planes that ``pack`` wrote channels last.
##
## Data (forward, data gradient): m = (image, place), n = target channel, k = chunks of 8 channels of tap after tap.
##   A's rows are gathered from the source, 16 bytes a copy; B is packed in slices with the layout of local memory.
## Weights: m = target channel, n = chunks of 8 channels of tap after tap, k = (image, place).
##   Both operands are gathered with k along rows; the tensor cores read them transposed.
##
## Local memory holds STAGES slices of BK along k. Rows are BK numbers long (data) or 64 (weights, blocks of 64
## channels); 16-byte chunks of a row are swizzled, so that eight rows of a column are in different banks.
##
## bm, bn, bk  tile of a work group, and the depth of a slice
## window      1: local memory holds the source pixels that a tile's taps read once for each block of BK channels, and
##             each tap starts at another row of them. Rows of A are then positions of the padded source, and positions
##             that are no output pixels are not written.
## wm, wn      warps (mma) or groups of four warps (wgmma) along m and n
## stages      slices in local memory. If a slice's sums are drained at once (ProductTiling.drained), nobody reads the
##             previous slice after this slice's barrier, and the copies of all slices but one are in flight. Otherwise
##             tensor cores may still read the previous slice, and the copies of all but two are.
## split       parts of the sum over k, which are written to the workspace
## flush_every     exact formats, wgmma: slices between additions of its sums to float32 registers; 0: after every 16 of k
## compensated       exact formats: the rounding error of such an addition is the start of the next sums
##
## Parts: ``iterator`` (addresses of copies), ``copies`` (the pipeline: a slice's copies), ``window``, ``fragments``,
## ``mainloop_registers`` and ``mainloop_wgmma`` (a slice's products and sums), ``results`` (the epilogue and the stores),
## ``channel_sums`` (of the stored results).
## The template's values come from ``plan.py``.
<%namespace name="window" file="window.cl.mako"/>\
<%namespace name="register_loop" file="mainloop_registers.cl.mako"/>\
<%namespace name="wgmma_loop" file="mainloop_wgmma.cl.mako"/>\
#define INDEX ${tiling.index}
% if many:
// A row for each phase: first, count, taps and origin along d, h, w; slices of the phases before it, and its own.
constant int PHASES[${len(geo.phases)}][14] = {
% for number, p in enumerate(geo.phases):
  {${", ".join(map(str, (*p.first, *p.count, *p.taps, *p.origin, tiling.before[number], tiling.slices[number])))}},
% endfor
};
% endif




% if core.a:
// Byte offset in a slice of the number k of a line: for rows along k, and for a transposed slice.
inline uint row_place(int row, int k) { return row * ${rowb} + ((k / 8 ^ (${swizzled("row")})) << 4) + k % 8 * 2; }
inline uint column_place(int line, int k) { return line / 64 * ${t.bk * 128} + k * 128 + ((line % 64 / 8 ^ k % 8) << 4) + line % 8 * 2; }
% else:
#define LBO ${t.bk * 128}
#define SBO ${8 * rowb}
#define B_LBO ${t.bk * 128}
#define B_SBO ${1024 if tiling.transposed_weights else 8 * rowb}
% endif
${core.attributes}kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b${", global const int *restrict marks_a, global const int *restrict marks_b" if f.scaled else ""}, OUT_PARAMS${", global float *channel_parts" if tiling.summed else ""}${", global const float *norm" if t.norm_in_place else ""}) {
  local uint4 area[${tiling.local_bytes // 16}] __attribute__((aligned(1024)));
  SCRATCH(${items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % ${core.lanes}, warp = tid / ${core.lanes};
  int rest = get_group_id(0);
  const int n_tile = rest % ${tiling.n_tiles};
  rest /= ${tiling.n_tiles};
  const int m_tile = rest % ${tiling.m_tiles};
  rest /= ${tiling.m_tiles};
  const int part = rest % ${t.split};
  rest /= ${t.split};
  const int number = rest % ${len(geo.phases)}, group = rest / ${len(geo.phases)};
  const int m0 = m_tile * ${t.bm}, n0 = n_tile * ${t.bn};
% if many:
  constant int *row_of = PHASES[number];
  const int ${", ".join(f"{field}_{names[axis]} = row_of[{3 * i + axis}]" for i, field in enumerate(("first", "count", "taps", "origin")) for axis in axes)};
  const int before = row_of[12], slices = row_of[13];
  const int places = count_z * count_y * count_x, m_end = places * ${geo.images};
  const int depth = taps_z * taps_y * taps_x * ${c8};
% else:
  const int slices = ${tiling.slices[0]}, m_end = ${(win.places if t.window else geo.images * geo.phases[0].places) if data else geo.m};
  const int depth = ${tiling.depth(geo.phases[0])};
% endif
% if t.window:
  const int begin = ${tiling.slices[0] // volume} * part / ${t.split} * ${volume}, end = ${tiling.slices[0] // volume} * (part + 1) / ${t.split} * ${volume};
% else:
<% first, last = ("0", "slices") if t.split == 1 else (f"(int)((long)slices * part / {t.split})", f"(int)((long)slices * (part + 1) / {t.split})") %>\
  const int begin = ${first}, end = ${f"m0 < m_end ? {last} : {first}" if many else last};
% endif
  a += A_AT;
  b += B_AT;
<%include file="iterator.cl.mako"/>\
<%include file="fragments.cl.mako"/>\
  float sum[${sums}];
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
% if not wgmma and compensated:
  float lost[${sums}];
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) lost[i] = 0;
% endif
% if separate:
  float fresh[${sums}];
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) fresh[i] = 0;
% endif
${window.first()}\
  for (int i = 0; i < ${distance}; ++i) {
    if (begin + i < end) {
${part("copies.cl.mako", slice="(begin + i)", stage=f"i * {stage_bytes}")}\
    }
    copies_commit();
  }
  uint stage_at = 0, next_at = ${distance * stage_bytes};
% if not drained:
  int add = 0${f", left = {t.flush_every}" if separate else ""};
% endif
  for (int slice = begin; slice < end; ++slice) {
    COPIES_WAIT(${distance - 1});
% if t.norm_in_place:
${part("copies.cl.mako", slice="slice", stage="stage_at", normalise=True)}\
% endif
% if wgmma:
    VISIBLE_TO_WGMMA();
    barrier(CLK_LOCAL_MEM_FENCE);
% if t.window:
${window.shift_of_tap()}\
% endif
${wgmma_loop.multiply(batches[0])}\
% if not drained:
    add = 1;
% endif
% else:
    barrier(CLK_LOCAL_MEM_FENCE);
% if t.window:
${window.shift_of_tap()}\
% endif
% endif
    if (slice + ${distance} < end) {
${part("copies.cl.mako", slice=f"(slice + {distance})", stage="next_at")}\
    }
${window.next()}\
    copies_commit();
    next_at = next_at == ${(t.stages - 1) * stage_bytes} ? 0 : next_at + ${stage_bytes};
% if wgmma and drained:
${wgmma_loop.move_sums()}\
% for batch in batches[1:]:
${wgmma_loop.multiply(batch)}\
${wgmma_loop.move_sums()}\
% endfor
% elif separate:
    if (--left == 0) {
${wgmma_loop.move_sums()}\
      add = 0;
      left = ${t.flush_every};
    } else
      WGMMA_WAIT(1);
% elif wgmma:
    WGMMA_WAIT(1);
% else:
${register_loop.multiply()}\
% endif
${window.turn()}\
    stage_at = stage_at == ${(t.stages - 1) * stage_bytes} ? 0 : stage_at + ${stage_bytes};
  }
% if separate and not drained:
  if (add) {
${wgmma_loop.move_sums()}\
  }
% elif wgmma and not separate:
  wgmma_finish(sum);
% endif
${part("results.cl.mako")}\
}
