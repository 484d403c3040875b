## y[m, n] = finished(sum over k of A[m, k] B[n, k] - x_zero sum over k of B[n, k]), as ``stream.cl.mako`` has it, for kernels of
## several taps a step apart: what a tile needs of x is copied once, not once a tap.
##
## A tile is some rows of y, and the rows of x that these need are one behind the other in local memory, ``pitch`` pixels each.
## Place r of the tile is row r / pitch, column r % pitch, so that what tap (kh, kw) adds begins kh dh pitch + kw dw pixels later
## for all places: tensor cores take A from any pixel on, since swizzles go by addresses. The last places of a row are none of y's.
##
## One warp copies x, one weights, tap after tap of a block of channels, and the others multiply.
<%namespace name="results" file="results.cl.mako"/>\
<%namespace name="staying" file="staying.cl.mako"/>\
<%
t, p, sources, together = tiling.tile, tiling.problem, tiling.sources, tiling.together
tap_bytes, steps = t.bn * t.bk, tiling.taps // together
%>\
${staying.macros()}\
<%def name="tile_of()">\
      const int n0 = tile % ${tiling.n_tiles} * ${t.bn}, group = tile / ${tiling.n_tiles * tiling.m_tiles}, part = tile / ${tiling.n_tiles} % ${tiling.m_tiles};
      const int image = part / ${tiling.row_tiles}, top = part % ${tiling.row_tiles} * ${tiling.tile_rows};
</%def>\
<%def name="copy_source(to, bar)">\
        COPY_BOX4(MAP_A, ${to}, group * ${tiling.c // 2} + block * ${t.bk // 2}, -PW, top - PH, image, ${bar});
</%def>\
<%def name="copy_weights()">\
% for i in range(together):
          COPY_BOX2(MAP_B, at + ${i * tap_bytes}, ((step_of * ${together} + ${i}) * ${tiling.blocks} + block) * ${t.bk // 2}, group * ${tiling.rows} + n0, full);
% endfor
</%def>\
<%def name="multiply(group)">\
<% columns = group * t.bn // tiling.column_groups * t.bk %>\
% for i in range(together):
% for k in range(t.bk // 32):
          WGMMA(sum, from + (${i * t.bk} * DW + ${32 * k}), at + ${i * tap_bytes + columns + 32 * k}, ${1 if i + k else 0 if tiling.float8 else "add"});
% endfor
% endfor
</%def>\
## Where the next taps' pixels begin.
<%def name="next_taps()">\
% if together > 1:
          from += DH * ${tiling.pitch * t.bk};
% else:
          from += DW * ${t.bk};
          if (++kw == KW) {
            kw = 0;
            from += (DH * ${tiling.pitch} - KW * DW) * ${t.bk};
          }
% endif
</%def>\
${staying.head()}\
% if not emulate:
${staying.barriers(sources + t.stages)}\
  if (warp >= ${t.wm * 4}) {
${staying.registers(0)}\
    if (tid == ${t.items}) {
${staying.maps(0)}\
      uint turn = 0;
      for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
        for (int block = 0; block < ${tiling.blocks}; ++block, ++turn) {
          const uint slot = turn % ${sources}, full = bars + 16 * slot;
          barrier_wait(full + 8, turn / ${sources} % 2 ^ 1);
          barrier_expect(full, ${tiling.box_bytes});
${copy_source(f"{tiling.sources_at} + slot * {tiling.source_bytes}", "full")}\
        }
      }
    } else if (tid == ${t.items + 32}) {
${staying.maps(1)}\
      uint at = 0, bar = bars + ${16 * sources}, parity = 1;
      for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
        for (int block = 0; block < ${tiling.blocks}; ++block)
          for (int step_of = 0; step_of < ${steps}; ++step_of) {
            barrier_wait(bar + 8, parity);
            const uint full = bar;
            barrier_expect(full, ${tiling.stage_bytes});
${copy_weights()}\
${staying.advance(tiling.stage_bytes, t.stages, sources)}\
          }
      }
    }
  } else {
${staying.registers(1)}\
${staying.multiplying()}\
    uint at = 0, bar = bars + ${16 * sources}, parity = 0, turn = 0;
    for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
${staying.numbers(f"warps_meet({t.items})")}\
      uint last = 0, source = 0;
      int add = 0;
${staying.rolled()}\
      for (int block = 0; block < ${tiling.blocks}; ++block, ++turn) {
        const uint before = source, slot = turn % ${sources};
        source = bars + 16 * slot + 8;
        uint from = ${tiling.sources_at} + slot * ${tiling.source_bytes} + a_from;
        int kw = 0;
        barrier_wait(source - 8, turn / ${sources} % 2);
${staying.rolled()}\
        for (int step_of = 0; step_of < ${steps}; ++step_of) {
          barrier_wait(bar, parity);
${staying.products(multiply)}\
${staying.step_added()}\
          if (add) {
            WGMMA_WAIT(1);
            if (lane == 0) barrier_release(last);
            if (step_of == 0 & lane == 0) barrier_release(before);
          }
          add = 1;
          last = bar + 8;
${next_taps()}\
${staying.advance(tiling.stage_bytes, t.stages, sources)}\
        }
      }
      wgmma_finish(sum);
      if (lane == 0) barrier_release(last);
      if (lane == 0) barrier_release(source);
${results.leave()}\
    }
  }
% else:
  const uint at = 0;
  global const uchar *MAP_A = x, *MAP_B = w;
${staying.multiplying()}\
  for (int tile = first; tile < ${tiling.work_groups}; tile += step) {
${tile_of()}\
${staying.numbers("barrier(CLK_LOCAL_MEM_FENCE)")}\
    int add = 0;
    for (int block = 0; block < ${tiling.blocks}; ++block) {
      uint from = ${tiling.sources_at} + a_from;
      int kw = 0;
${copy_source(tiling.sources_at, 0)}\
      for (int step_of = 0; step_of < ${steps}; ++step_of) {
${copy_weights()}\
        barrier(CLK_LOCAL_MEM_FENCE);
${staying.products(multiply)}\
${staying.step_added()}\
        add = 1;
${next_taps()}\
        barrier(CLK_LOCAL_MEM_FENCE);
      }
    }
${results.leave()}\
  }
% endif
}
