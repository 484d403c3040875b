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
## The template sees a ``ProductForm`` (``form.py``); a name in capitals is a number of the geometry, which is an argument.
<%namespace name="window" file="window.cl.mako"/>\
<%namespace name="register_loop" file="mainloop_registers.cl.mako"/>\
<%namespace name="wgmma_loop" file="mainloop_wgmma.cl.mako"/>\
#define INDEX ${form.index}
% if many:
// A row for each phase: first place, taps and origin along d, h, w, and all taps.
constant int PHASES[${len(form.phases)}][10] = {
% for row in form.phases:
  {${", ".join(map(str, row))}},
% endfor
};
inline int slices_of(int taps, int c8) { return ${"taps * c8 / " + str(cr) if form.whole else f"(taps * c8 + {cr - 1}) / {cr}"}; }
% endif
% if core.a:
// Byte offset in a slice of the number k of a line: for rows along k, and for a transposed slice.
inline uint row_place(int row, int k) { return row * ${rowb} + ((k / 8 ^ (${swizzled("row")})) << 4) + k % 8 * 2; }
inline uint column_place(int line, int k) { return line / 64 * ${t.bk * 128} + k * 128 + ((line % 64 / 8 ^ k % 8) << 4) + line % 8 * 2; }
% else:
#define LBO ${t.bk * 128}
#define SBO ${8 * rowb}
#define B_LBO ${t.bk * 128}
#define B_SBO ${1024 if form.weights == "transposed" else 8 * rowb}
% endif
${core.attributes}kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b${", global const int *restrict marks_a, global const int *restrict marks_b" if f.scaled else ""}, OUT_PARAMS${", global float *channel_parts" if form.summed else ""}${", global const float *norm" if t.norm_in_place else ""} NUMBERS) {
  local uint4 area[${local_bytes // 16}] __attribute__((aligned(1024)));
  SCRATCH(${items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % ${core.lanes}, warp = tid / ${core.lanes};
  int rest = get_group_id(0), next = DIVIDED(rest, N_TILES);
  const int n_tile = rest - next * N_TILES;
  rest = next, next = DIVIDED(rest, M_TILES);
  const int m_tile = rest - next * M_TILES;
% if t.split > 1:
  rest = next, next = DIVIDED(rest, SPLIT);
  const int part = rest - next * SPLIT;
% else:
  const int part = 0;
% endif
  const int number = ${f"next % {len(form.phases)}" if many else 0}, group = ${f"next / {len(form.phases)}" if many else "next"};
  const int m0 = m_tile * ${t.bm}, n0 = n_tile * ${t.bn};
% if many:
  constant int *row_of = PHASES[number];
  const int ${", ".join(f"{field}_{letters[axis]} = row_of[{3 * i + axis}]" for i, field in enumerate(("first", "taps", "origin")) for axis in range(3))};
% for axis in form.axes:
  const int count_${letters[axis]} = (TARGET_${capitals[axis]} + ${form.out_step[axis] - 1} - first_${letters[axis]}) / ${form.out_step[axis]};
% endfor
  int before = 0;
  for (int p = 0; p < number; ++p) before += slices_of(PHASES[p][9], C8);
  const int slices = slices_of(row_of[9], C8), m_end = ${" * ".join(f"count_{letters[axis]}" for axis in form.axes)} * IMAGES, depth = row_of[9] * C8;
% else:
  const int slices = ${"BLOCKS" if t.window else "SLICES"}, m_end = M_END, depth = DEPTH;
% endif
<% taps = " * TAPS" if t.window else "" %>\
% if t.split > 1:
  // Part p begins at slice (of a window, at block of channels) slices p / SPLIT.
  const uint share = DIVIDED(slices, SPLIT), spare = slices - share * SPLIT, past = spare * part, until = past + spare;
  const int begin = (share * part + DIVIDED(past, SPLIT))${taps}, last = (share * (part + 1) + DIVIDED(until, SPLIT))${taps};
% else:
  const int begin = 0, last = slices${taps};
% endif
  const int end = ${"m0 < m_end ? last : begin" if many else "last"};
% if form.partial:
  out += PARTS_AT;
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
