## C[m, n] = sum over k of A[m, k] B[k, n] on tensor cores, from 16-bit planes that ``pack`` wrote channels last.
##
## Data (forward, data gradient): m = (image, place), n = target channel, k = chunks of 8 channels of tap after tap.
##   A's rows are gathered from the source, 16 bytes a copy; B comes packed in slices as they lie in local memory.
## Weights: m = target channel, n = chunks of 8 channels of tap after tap, k = (image, place).
##   Both operands are gathered with k along rows; the tensor cores read them transposed.
##
## Local memory holds STAGES slices of BK along k. Rows are BK numbers long (data) or 64 (weights, blocks of 64
## channels); 16-byte chunks of a row are exchanged (swizzled) so that eight rows of a column lie in different banks.
##
## bm, bn, bk  tile of a work group, and the depth of a slice
## window      1: the source's pixels that a tile's taps read lie in local memory once for a block of BK channels, and
##             each tap multiplies them from another row on. Places are then positions of the padded source in a row,
##             and those that are no places of the output are not written.
## wm, wn      warps (mma) or groups of four warps (wgmma) along m and n
## stages      slices in local memory. The copies of all but one are in flight where a slice's sums are moved at once
##             (Tiling.drained): nobody reads the slice before any more once all are at this slice's barrier. Else tensor
##             cores may still read it, and the copies of all but two are.
## split       parts of the sum over k, which end in the workspace
## flush_every     exact formats, wgmma: slices between additions of its sums to float32 registers; 0: after every 16 of k
## compensated       exact formats: what such an addition rounds away begins the next sums
##
## Values come from ``product.py``; ``copies.cl.mako`` and ``results.cl.mako`` are parts of this text.
#define INDEX ${tiling.index}
% if many:
// first, count, taps, origin along d, h, w; slices of the phases before, and its own.
constant int PHASES[${len(geo.phases)}][14] = {
% for number, p in enumerate(geo.phases):
  {${", ".join(map(str, (*p.first, *p.count, *p.taps, *p.origin, tiling.before[number], tiling.slices[number])))}},
% endfor
};
% endif
<%def name="multiply_mma()">\
% for k in range(t.bk // 16):
      {
        uint fa[${planes}][${frag_m}][4], fb[${planes}][${frag_n // 2}][4];
% for p in range(planes):
% for i in range(frag_m):
% if data:
        LDMATRIX(fa[${p}][${i}], ${a_base} + ${p * a_plane + i * 16 * rowb} + a_row${f" + shift * {rowb}" if t.window else ""} + (((${k * 2} + lane / 16) ^ (${swizzled("lane + shift" if t.window else "lane")})) << 4));
% else:
        LDMATRIX_TRANS(fa[${p}][${i}], stage_at + ${p * a_bytes + k * 2048} + a_row + (a_chunk + ${i * 2}) / 8 * ${t.bk * 128} + (((a_chunk + ${i * 2}) % 8 ^ lane % 8) << 4));
% endif
% endfor
% for j in range(frag_n // 2):
% if data:
        LDMATRIX(fb[${p}][${j}], stage_at + ${b_const + p * b_bytes + j * 16 * rowb} + b_row + (((${k * 2} + lane / 8 % 2) ^ (${swizzled("lane")})) << 4));
% else:
        LDMATRIX_TRANS(fb[${p}][${j}], stage_at + ${planes * a_bytes + p * b_bytes + k * 2048} + b_row + (b_chunk + ${j * 2}) / 8 * ${t.bk * 128} + (((b_chunk + ${j * 2}) % 8 ^ lane % 8) << 4));
% endif
% endfor
% endfor
% for i in range(frag_m):
% for j in range(frag_n):
<% at = (i * frag_n + j) * 4 %>\
% if f.float32_accurate:
        {
          float part4[4] = {${", ".join(f"lost[{at + e}]" if t.compensated else "0" for e in range(4))}};
% for pa, pb in f.products:
          MMA(part4, fa[${pa}][${i}], fb[${pb}][${j // 2}] + ${j % 2 * 2});
% endfor
% for e in range(4):
          ${f"lost[{at + e}] = add_part(sum + {at + e}, part4[{e}])" if t.compensated else f"sum[{at + e}] += part4[{e}]"};
% endfor
        }
% else:
% for pa, pb in f.products:
        MMA(sum + ${at}, fa[${pa}][${i}], fb[${pb}][${j // 2}] + ${j % 2 * 2});
% endfor
% endif
% endfor
% endfor
      }
% endfor
</%def>
<%def name="multiply_wgmma(steps)">\
    WGMMA_BEGIN();
## Small products of all steps of 16 first: they meet sums as small as they are, and a large sum is cut once in 16 of k.
% for pa, pb in f.products:
% for k in steps:
<%
k_at = k * 32 if data else k * 2048
bk_at = k * 2048 if tiling.transposed_weights else k_at
add = "1" if (k, (pa, pb)) != (steps[0], f.products[0]) or compensated else "0" if drained else "add"
%>\
    WGMMA(${"fresh" if apart else "sum"}, ${a_base} + a_from + ${pa * a_plane + k_at}${f' + shift * {rowb}' if t.window else ''}, stage_at + b_from + ${pb * b_bytes + bk_at}, ${add});
% endfor
% endfor
    WGMMA_COMMIT();
</%def>
<%def name="move_sums()">\
      wgmma_finish(fresh);
#pragma unroll
      for (int i = 0; i < ${sums}; ++i) ${"fresh[i] = add_part(sum + i, fresh[i])" if compensated else "sum[i] += fresh[i]"};
</%def>
<%def name="shift_of_tap()">\
<%
k = geo.phases[0].taps
stride = (win.size[1] * win.size[2], win.size[2], 1)
%>\
    const int shift = ${win.shifts[0]}${"".join(f" + ({divided}) * ({geo.spread[axis] * stride[axis]})" for axis, divided in enumerate((f"tap / {k[1] * k[2]}", f"tap / {k[2]} % {k[1]}", f"tap % {k[2]}")) if k[axis] > 1)};
</%def>
#define LBO ${t.bk * 128}
#define SBO ${8 * rowb}
#define B_LBO ${t.bk * 128}
#define B_SBO ${1024 if tiling.transposed_weights else 8 * rowb}
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const ushort *restrict a, global const ushort *restrict b${", global const int *restrict marks_a, global const int *restrict marks_b" if f.scaled else ""}, OUT_PARAMS) {
  local uint4 area[${tiling.local_bytes // 16}] __attribute__((aligned(1024)));
  SCRATCH(${items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
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
% if data:
  // This item's chunk of a row, and its rows: where they read, and which taps lie inside.
  const int chunk = tid % ${cr}, row = tid / ${cr};
  const uint to = row * ${rowb} + ((chunk ^ ${swizzled("row")}) << 4);
  a += (long)group * ${src.group};
% if tiling.transposed_weights:
  // This item's chunk of a block of 64 columns, and its rows of k.
  const int b_chunk = tid % 8, b_row = tid / 8;
  const uint b_to = b_row * 128 + ((b_chunk ^ b_row % 8) << 4);
  b += (long)group * ${geo.c} * ${tiling.weight_strides[0]} + n0 + b_chunk * 8;
% elif tiling.direct_weights:
  b += ((long)group * ${geo.m} + n0) * ${tiling.depth(geo.phases[0]) * 8};
% else:
  b += ((long)group * ${sum(tiling.slices)}${" + before" if many else ""}) * ${tiling.n_tiles * tiling.weight_slice}L + (long)n_tile * ${tiling.weight_slice} + tid * 8;
% endif
% for i in range(0 if t.window else rows_a):
  INDEX at${i};
  uint ok${i} = 0;
  {
    const int n = min(m0 + row + ${i * step_a}, m_end - 1), image = n / ${per}, pixel = n % ${per};
    const int iz = pixel / (${count[1]} * ${count[2]}) * ${geo.step[0]} + (${phase("origin", 0)});
    const int iy = pixel / ${count[2]} % ${count[1]} * ${geo.step[1]} + (${phase("origin", 1)});
    const int ix = pixel % ${count[2]} * ${geo.step[2]} + (${phase("origin", 2)});
    at${i} = (INDEX)image * ${src.image} + (INDEX)iz * ${src.axes[0]} + (INDEX)iy * ${src.axes[1]} + (INDEX)ix * ${src.axes[2]};
<% low = [tiling.tap_bits[1] + tiling.tap_bits[2], tiling.tap_bits[2], 0] %>\
% for axis in axes:
% for tap in range(tiling.tap_bits[axis]):
    ok${i} |= (uint)((uint)(i${names[axis]} + ${tap * geo.spread[axis]}) < ${src.size[axis]}u) << ${low[axis] + tap};
% endfor
% endfor
  }
% endfor
% else:
  // This item's chunk of a block of 64 channels, and its rows of places.
  const int chunk = tid % 8, row = tid / 8;
  const uint to = row * 128 + ((chunk ^ row % 8) << 4);
  const int a_c = m0 + chunk * 8;
  const INDEX a_at = (INDEX)group * ${tiling.places.group} + a_c;
<% k = geo.kernel %>\
% for block in range(t.bn // 64):
  const int q${block} = n0 / 8 + ${block * 8} + chunk, tap${block} = q${block} / ${c8}, real_b${block} = q${block} < depth;
  const int shift_z${block} = tap${block} / ${k[1] * k[2]} * ${geo.spread[0]}, shift_y${block} = tap${block} / ${k[2]} % ${k[1]} * ${geo.spread[1]}, shift_x${block} = tap${block} % ${k[2]} * ${geo.spread[2]};
  const INDEX b_at${block} = (INDEX)group * ${src.group} + q${block} % ${c8} * 8 + (INDEX)shift_z${block} * ${src.axes[0]} + (INDEX)shift_y${block} * ${src.axes[1]} + (INDEX)shift_x${block} * ${src.axes[2]};
% endfor
% endif
% if wgmma:
  const int wg = warp / 4, wg_m = wg % ${t.wm}, wg_n = wg / ${t.wm};
  const int row0 = wg_m * 64 + warp % 4 * 16 + lane / 4, column0 = wg_n * ${t.bn // t.wn} + lane % 4 * 2;
% if data:
  const uint a_from = wg_m * ${64 * rowb}, b_from = ${b_const} + wg_n * ${t.bn // t.wn * (t.bk * 2 if tiling.transposed_weights else rowb)};
% else:
  const uint a_from = wg_m * ${t.bk * 128}, b_from = ${planes * a_bytes} + wg_n * ${t.bn // t.wn // 64 * t.bk * 128};
% endif
% else:
  const int w_m = warp % ${t.wm}, w_n = warp / ${t.wm};
  const int row0 = w_m * ${t.bm // t.wm} + lane / 4, column0 = w_n * ${t.bn // t.wn} + lane % 4 * 2;
% if data:
  const uint a_row = (w_m * ${t.bm // t.wm} + lane % 16) * ${rowb}, b_row = (w_n * ${t.bn // t.wn} + lane / 16 * 8 + lane % 8) * ${rowb};
% else:
  const uint a_row = (lane / 16 * 8 + lane % 8) * 128, a_chunk = w_m * ${t.bm // t.wm // 8} + lane / 8 % 2;
  const uint b_row = (lane / 8 % 2 * 8 + lane % 8) * 128, b_chunk = w_n * ${t.bn // t.wn // 8} + lane / 16;
% endif
% endif
  float sum[${sums}];
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
% if not wgmma and compensated:
  float lost[${sums}];
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) lost[i] = 0;
% endif
% if apart:
  float fresh[${sums}];
#pragma unroll
  for (int i = 0; i < ${sums}; ++i) fresh[i] = 0;
% endif
% if t.window:
  if (begin < end) {
% for i in range(rows_w):
${part("copies.cl.mako", number=i, slice=f"(begin / {volume})", stage="0")}\
% endfor
  }
  uint window_at = 0;
  int tap = 0, block = begin / ${volume};
% endif
  for (int i = 0; i < ${distance}; ++i) {
    if (begin + i < end) {
${part("copies.cl.mako", slice="(begin + i)", stage=f"i * {stage_bytes}")}\
    }
    copies_commit();
  }
  uint stage_at = 0, next_at = ${distance * stage_bytes};
% if not drained:
  int add = 0${f", left = {t.flush_every}" if apart else ""};
% endif
  for (int slice = begin; slice < end; ++slice) {
    COPIES_WAIT(${distance - 1});
% if wgmma:
    VISIBLE_TO_WGMMA();
    barrier(CLK_LOCAL_MEM_FENCE);
% if t.window:
${shift_of_tap()}\
% endif
${multiply_wgmma(batches[0])}\
% if not drained:
    add = 1;
% endif
% else:
    barrier(CLK_LOCAL_MEM_FENCE);
% if t.window:
${shift_of_tap()}\
% endif
% endif
    if (slice + ${distance} < end) {
${part("copies.cl.mako", slice=f"(slice + {distance})", stage="next_at")}\
    }
% if t.window:
    // The other window's last reader is done from tap 1 on; the copies are spread over the taps.
    if ((block + 1) * ${volume} < end) {
% for i in range(rows_w):
      if (tap == ${1 + i * span // rows_w})
${part("copies.cl.mako", number=i, slice="(block + 1)", stage=f"({wbytes}u - window_at)")}\
% endfor
    }
% endif
    copies_commit();
    next_at = next_at == ${(t.stages - 1) * stage_bytes} ? 0 : next_at + ${stage_bytes};
% if wgmma and drained:
${move_sums()}\
% for batch in batches[1:]:
${multiply_wgmma(batch)}\
${move_sums()}\
% endfor
% elif apart:
    if (--left == 0) {
${move_sums()}\
      add = 0;
      left = ${t.flush_every};
    } else
      WGMMA_WAIT(1);
% elif wgmma:
    WGMMA_WAIT(1);
% else:
${multiply_mma()}\
% endif
% if t.window:
    if (++tap == ${volume}) {
      tap = 0;
      ++block;
      window_at = ${wbytes} - window_at;
    }
% endif
    stage_at = stage_at == ${(t.stages - 1) * stage_bytes} ? 0 : stage_at + ${stage_bytes};
  }
% if apart and not drained:
  if (add) {
${move_sums()}\
  }
% elif wgmma and not apart:
  wgmma_finish(sum);
% endif
${part("results.cl.mako")}\
}
