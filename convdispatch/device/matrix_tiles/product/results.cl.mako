## Stores the sums, scaled back, through local memory to the output or its parts. A part of ``product.cl.mako``.
<% runs = len(core.rows); summed = tiling.summed; residual, masked = tiling.problem.residual, tiling.problem.masked %>\
<%def name="place_of(m)">\
<% channels = geo.m // (geo.stacked[0] * geo.stacked[1] * geo.stacked[2]) if geo.stacked else geo.m %>\
% if t.window:
    const int image = ${m} / ${win.image}, oz = ${m} / ${win.size[1] * win.size[2]} % ${win.size[0]}, oy = ${m} / ${win.size[2]} % ${win.size[1]}, ox = ${m} % ${win.size[2]};
    const int real = ${m} < m_end & oz < ${geo.phases[0].count[0]} & oy < ${geo.phases[0].count[1]} & ox < ${geo.phases[0].count[2]};
    const OUT_INDEX out_at = ${f"(OUT_INDEX)part * {tiling.partial_elements} + " if t.split > 1 else ""}(OUT_INDEX)image * ${dst.image}
        + (OUT_INDEX)oz * ${geo.out_step[0] * dst.axes[0]} + (OUT_INDEX)oy * ${geo.out_step[1] * dst.axes[1]} + (OUT_INDEX)ox * ${geo.out_step[2] * dst.axes[2]} + (OUT_INDEX)group * ${channels} * ${dst.channel};
% else:
    const int real = ${m} < m_end, image = ${m} / ${per}, pixel = ${m} % ${per};
    const OUT_INDEX out_at = ${f"(OUT_INDEX)part * {tiling.partial_elements} + " if t.split > 1 else ""}(OUT_INDEX)image * ${dst.image}
        + (OUT_INDEX)(pixel / (${count[1]} * ${count[2]}) * ${geo.out_step[0]} + ${phase("first", 0)}) * ${dst.axes[0]}
        + (OUT_INDEX)(pixel / ${count[2]} % ${count[1]} * ${geo.out_step[1]} + ${phase("first", 1)}) * ${dst.axes[1]}
        + (OUT_INDEX)(pixel % ${count[2]} * ${geo.out_step[2]} + ${phase("first", 2)}) * ${dst.axes[2]} + (OUT_INDEX)group * ${channels} * ${dst.channel};
% endif
</%def>
<% octets = t.bm * t.bn // 8 %>\
<%def name="octet(i)">\
      const int r = ${i} / ${t.bn // 8}, c = ${i} % ${t.bn // 8} * 8, n = n0 + c, row = group * ${geo.m} + n;
      const OUT_INDEX out_at = place_of_row[r];
</%def>
<%def name="staged_octet()">\
        const float4 low = *(local float4 *)(staging + r * ${pitch} + c), high = *(local float4 *)(staging + r * ${pitch} + c + 4);
        const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
</%def>
% if f.scaled:
  {
% for r in range(runs * frag_m):
    const int place${r} = min(m0 + row0 + ${r // runs * core.m + core.rows[r % runs]}, m_end - 1), mark${r} = marks_a[MARKS_A_AT + ${tiling.row_mark(f"place{r}", per)}] - ${tiling.unshift};
% endfor
#pragma unroll
    for (int j = 0; j < ${frag_n}; ++j)
#pragma unroll
      for (int e = 0; e < ${core.width}; ++e) {
        const int n = min(n0 + column0 + j * ${core.n} + e, ${tiling.n - 1}), mark = marks_b[MARKS_B_AT + ${tiling.column_mark("n")}];
% for r in range(runs * frag_m):
<% at = f"({r // runs * frag_n} + j) * {core.sums} + {r % runs * core.width} + e" %>\
        sum[${at}] = shifted(sum[${at}], mark${r} + mark);
% endfor
      }
  }
% endif
% if tiling.staged:
<% lines, pitch = tiling.staging %>\
  // Results pass through local memory, so that neighbouring work items write neighbouring elements.
  barrier(CLK_LOCAL_MEM_FENCE);
  {
    local float *staging = (local float *)area;
% for i in range(frag_m):
% for run, offset in enumerate(core.rows):
#pragma unroll
    for (int j = 0; j < ${frag_n}; ++j) {
      const int r = row0 + ${i * core.m + offset}, c = column0 + j * ${core.n}, at = (${i * frag_n} + j) * ${core.sums} + ${run * core.width};
% if dst.nhwc and core.width == 2:
      *(local float2 *)(staging + r * ${pitch} + c) = (float2)(sum[at], sum[at + 1]);
% elif dst.nhwc:
      staging[r * ${pitch} + c] = sum[at];
% else:
      staging[c * ${pitch} + r] = sum[at];
% if core.width == 2:
      staging[(c + 1) * ${pitch} + r] = sum[at + 1];
% endif
% endif
    }
% endfor
% endfor
% if (dst.nhwc or summed) and not geo.stacked:
    // The offset of a row in the output, or -1; computed once for a row, not once for each of its channels.
    local OUT_INDEX *place_of_row = (local OUT_INDEX *)(staging + ${lines * pitch});
    for (int r = tid; r < ${t.bm}; r += ${items}) {
      const int m = m0 + r;
${place_of("m")}\
      place_of_row[r] = real ? out_at : -1;
    }
% endif
    barrier(CLK_LOCAL_MEM_FENCE);
% if geo.stacked:
<%
parts = geo.stacked
icg = geo.m // (parts[0] * parts[1] * parts[2])
%>\
    // Columns are (phase, channel): neighbouring work items take neighbouring phases along w, which are contiguous.
    for (int i = tid; i < ${t.bm * parts[2]}; i += ${items}) {
      const int r = i / ${parts[2]}, fx = i % ${parts[2]}, m = m0 + r;
${place_of("m")}\
      const int px = ${"ox" if t.window else f"pixel % {count[2]}"}, py = ${"oy" if t.window else f"pixel / {count[2]} % {count[1]}"}, pz = ${"oz" if t.window else f"pixel / ({count[1]} * {count[2]})"};
      if (real & px * ${geo.out_step[2]} + fx < ${dst.size[2]})
        for (int f = 0; f < ${parts[0] * parts[1]}; ++f) {
          const int fz = f / ${parts[1]}, fy = f % ${parts[1]};
          if (pz * ${geo.out_step[0]} + fz < ${dst.size[0]} & py * ${geo.out_step[1]} + fy < ${dst.size[1]})
            for (int c = 0; c < ${icg}; ++c) {
              const int n = (f * ${parts[2]} + fx) * ${icg} + c - n0, row = group * ${icg} + c;
              if (n >= 0 & n < ${t.bn})
                put(OUT_ARGS, staging[${f"r * {pitch} + n" if dst.nhwc else f"n * {pitch} + r"}], out_at + (OUT_INDEX)fz * ${dst.axes[0]} + (OUT_INDEX)fy * ${dst.axes[1]} + (OUT_INDEX)fx * ${dst.axes[2]} + (OUT_INDEX)c * ${dst.channel}, row);
            }
        }
    }
% elif dst.nhwc and tiling.returning:
#if OCTETS
    // What is added, and what a norm's gradient depends on, is read for four octets before any is written.
    for (int first = tid; first < ${octets}; first += ${4 * items}) {
      RAW8 addend[4], before[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = min(first + u * ${items}, ${octets - 1});
${octet("i")}\
        const OUT_INDEX from = out_at >= 0 & n < ${geo.m} ? out_at + n : 0;
        addend[u] = ${"raw8(residual + from)" if residual else "NO_RAW8"};
        before[u] = ${"raw8(saved + from)" if masked else "NO_RAW8"};
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = first + u * ${items};
        if (i >= ${octets}) continue;
${octet("i")}\
        if (out_at >= 0 & n < ${geo.m}) {
${staged_octet()}\
          ${"const float8 stored = WIDE8(" if summed else ""}put8_stored(OUT_ARGS, v, addend[u], before[u], out_at + n, row)${")" if summed else ""};
% if summed:
          *(local float4 *)(staging + r * ${pitch} + c) = stored.lo;
          *(local float4 *)(staging + r * ${pitch} + c + 4) = stored.hi;
% endif
        }
      }
    }
#else
    for (int i = tid; i < ${octets}; i += ${items}) {
${octet("i")}\
      if (out_at >= 0)
        for (int e = 0; e < min(8, ${geo.m} - n); ++e)
          staging[r * ${pitch} + c + e] = put_stored(OUT_ARGS, staging[r * ${pitch} + c + e], out_at + n + e, row + e);
    }
#endif
% elif dst.nhwc:
#if OCTETS && RESIDUAL && !PARTIAL
    // Residuals of four octets are read before any is written, so that a read does not wait for the preceding write.
    for (int first = tid; first < ${octets}; first += ${4 * items}) {
      RAW8 addend[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = min(first + u * ${items}, ${octets - 1});
${octet("i")}\
        addend[u] = raw8(residual + (out_at >= 0 & n < ${geo.m} ? out_at + n : 0));
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = first + u * ${items};
        if (i >= ${octets}) continue;
${octet("i")}\
        if (out_at >= 0 & n < ${geo.m}) {
${staged_octet()}\
          put8_addend(OUT_ARGS, v, addend[u], out_at + n, row);
        }
      }
    }
#else
    for (int i = tid; i < ${octets}; i += ${items}) {
${octet("i")}\
      if (out_at >= 0 & n < ${geo.m}) {
${staged_octet()}\
#if OCTETS
        put8(v, out_at + n, row);
#else
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (n + e < ${geo.m}) put(OUT_ARGS, v[e], out_at + n + e, row + e);
#endif
      }
    }
#endif
% else:
<% rows_at_once = min(t.bm, items); columns_at_once = items // rows_at_once %>\
% for r0 in range(0, t.bm, rows_at_once):
    if (tid < ${rows_at_once * columns_at_once}${f" && {r0} + tid % {rows_at_once} < {t.bm}" if t.bm % rows_at_once else ""}) {
      const int r = ${r0} + tid % ${rows_at_once}, m = m0 + r;
${place_of("m")}\
      const int columns = min(${t.bn}, ${geo.m} - n0);
      if (real)
#pragma unroll 4
        for (int c = tid / ${rows_at_once}; c < columns; c += ${columns_at_once})
          ${f"staging[c * {pitch} + r] = put_stored" if summed else "put"}(OUT_ARGS, staging[c * ${pitch} + r], out_at + (OUT_INDEX)(n0 + c) * ${dst.channel}, group * ${geo.m} + n0 + c);
    }
% endfor
% endif
% if summed:
<%include file="channel_sums.cl.mako"/>\
% endif
  }
% else:
% for i in range(frag_m):
% for run, offset in enumerate(core.rows):
  {
    const int m = m0 + row0 + ${i * core.m + offset};
% if data:
${place_of("m")}\
    if (real)
#pragma unroll
      for (int j = 0; j < ${frag_n}; ++j) {
        const int n = n0 + column0 + j * ${core.n}, row = group * ${geo.m} + n;
% if core.width == 1:
        if (n < ${geo.m}) put(OUT_ARGS, sum[(${i * frag_n} + j) * ${core.sums} + ${run}], out_at + (OUT_INDEX)n * ${dst.channel}, row);
% else:
        const float v0 = sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2}], v1 = sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2 + 1}];
#if PAIRS
        if (n < ${geo.m}) put2(OUT_ARGS, v0, v1, out_at + n, row);
#else
        if (n < ${geo.m}) put(OUT_ARGS, v0, out_at + (OUT_INDEX)n * ${dst.channel}, row);
        if (n + 1 < ${geo.m}) put(OUT_ARGS, v1, out_at + (OUT_INDEX)(n + 1) * ${dst.channel}, row + 1);
#endif
% endif
      }
% else:
    const OUT_INDEX out_at = ((OUT_INDEX)(part * ${geo.groups} + group) * ${geo.m} + m) * ${tiling.n};
    if (m < m_end)
#pragma unroll
      for (int j = 0; j < ${frag_n}; ++j) {
        const int n = n0 + column0 + j * ${core.n};
% if core.width == 2:
        if (n < ${tiling.n}) put2(OUT_ARGS, sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2}], sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2 + 1}], out_at + n, 0);
% else:
        if (n < ${tiling.n}) put(OUT_ARGS, sum[(${i * frag_n} + j) * ${core.sums} + ${run}], out_at + n, 0);
% endif
      }
% endif
  }
% endfor
% endfor
% endif
