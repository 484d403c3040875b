## y[m, n] = finished(sum over k of A[m, k] B[n, k] - x_zero sum over k of B[n, k]), as ``product.cl.mako`` has it, on Hopper's
## tensor cores, fed by the copy engine.
##
## One warp copies and the others multiply, as in ``tma/product.cl.mako``: boxes of two tensor maps, one of x by taps and one of
## packed weights, in pairs of bytes, which it copies faster than bytes; ``full`` counts bytes that arrived, ``empty`` warps that
## have read; work groups stay, and the copies of the next tile are in flight while a tile's sums leave. Where a tap is outside of
## x the engine puts zeros, which stand for x_zero: what x_zero takes from a sum is that of the taps inside.
<%namespace name="results" file="results.cl.mako"/>\
<%namespace name="staying" file="staying.cl.mako"/>\
<% t, p, stage_bytes = tiling.tile, tiling.problem, tiling.stage_bytes %>\
${staying.macros()}\
<%def name="tile_of()">\
      const int n0 = tile % ${tiling.n_tiles} * ${t.bn}, m0 = tile / ${tiling.n_tiles} % ${tiling.m_tiles} * ${t.bm}, group = tile / ${tiling.n_tiles * tiling.m_tiles};
</%def>\
<%def name="start_of()">\
      const int image = m0 / (OH * OW), h = m0 / OW % OH * SH - PH, v = m0 % OW * SW - PW;
</%def>\
<%def name="copies()">\
        {
          const int tap = slice / ${tiling.blocks}, channel = slice % ${tiling.blocks} * ${t.bk // 2};
          COPY_IM2COL(MAP_A, at, group * ${tiling.c // 2} + channel, v, h, image, tap % KW * DW, tap / KW * DH, full);
          COPY_BOX2(MAP_B, at + ${tiling.a_bytes}, slice * ${t.bk // 2}, group * ${tiling.rows} + n0, full);
        }
</%def>\
<%def name="multiply(group)">\
<% columns = group * t.bn // tiling.column_groups * t.bk %>\
% for k in range(t.bk // 32):
        WGMMA(sum, at + a_from + ${32 * k}, at + ${tiling.a_bytes + columns + 32 * k}, ${1 if k else 0 if tiling.column_groups > 1 else "add"});
% endfor
</%def>\
${staying.head()}\
% if not emulate:
${staying.barriers(t.stages)}\
  uint at = 0, bar = bars;
  if (warp >= ${t.wm * 4}) {
${staying.registers(0)}\
    if (tid == ${t.items}) {
${staying.maps(0)}\
      uint parity = 1;
      for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
${start_of()}\
        for (int slice = 0; slice < ${tiling.slices}; ++slice) {
          barrier_wait(bar + 8, parity);
          const uint full = bar;
          barrier_expect(full, ${stage_bytes});
${copies()}\
${staying.advance(stage_bytes, t.stages, 0)}\
        }
      }
    }
  } else {
${staying.registers(1)}\
${staying.multiplying()}\
    uint parity = 0;
    for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
${staying.numbers(f"warps_meet({t.items})")}\
      uint last = 0;
${staying.rolled()}\
      for (int begin = 0; begin < ${tiling.slices}; begin += ${tiling.summed_slices}) {
        int add = 0;
${staying.rolled()}\
        for (int slice = begin; slice < min(begin + ${tiling.summed_slices}, ${tiling.slices}); ++slice) {
          barrier_wait(bar, parity);
${staying.products(multiply)}\
          if (add) {
            WGMMA_WAIT(1);
            if (lane == 0) barrier_release(last);
          }
          add = 1;
          last = bar + 8;
${staying.advance(stage_bytes, t.stages, 0)}\
        }
        wgmma_finish(sum);
        if (lane == 0) barrier_release(last);
${staying.added()}\
      }
${results.leave()}\
    }
  }
% else:
  const uint at = 0, full = 0;
  global const uchar *MAP_A = x, *MAP_B = w;
${staying.multiplying()}\
  for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
${start_of()}\
${staying.numbers("barrier(CLK_LOCAL_MEM_FENCE)")}\
    for (int slice = 0; slice < ${tiling.slices}; ++slice) {
      const int add = slice % ${tiling.summed_slices} > 0;
${copies()}\
      barrier(CLK_LOCAL_MEM_FENCE);
${staying.products(multiply)}\
      if ((slice + 1) % ${tiling.summed_slices} == 0 | slice + 1 == ${tiling.slices}) {
${staying.added()}\
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
${results.leave()}\
  }
% endif
}
