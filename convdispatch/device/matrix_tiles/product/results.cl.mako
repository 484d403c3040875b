## Stores the sums, scaled back, through local memory to the output or its parts. A part of ``product.cl.mako``.
<% runs, summed, residual, masked = len(core.rows), form.summed, form.residual, form.masked %>\
<%def name="place_of(m)">\
<%
start = ("(OUT_INDEX)part * PART_ELEMENTS + " if t.split > 1 else "") + "(OUT_INDEX)group * OUT_GROUP + "
guard = "".join(f" & o{letters[axis]} < COUNT_{capitals[axis]}" for axis in form.axes) if t.window else ""
%>\
% if form.flat_target and form.nhwc:
    const int real = ${m} < m_end;
    const OUT_INDEX out_at = ${start}(OUT_INDEX)${m} * OUT_W;
% elif form.flat_target:
    const int real = ${m} < m_end, image = DIVIDED(${m}, PIXELS);
    const OUT_INDEX out_at = ${start}(OUT_INDEX)image * OUT_IMAGE + ${m} - image * PIXELS;
% else:
    ${form.split(m, "WINDOW" if t.window else "COUNT", form.along("o"), "image")}
    const int real = ${m} < m_end${guard};
    const OUT_INDEX out_at = ${start}(OUT_INDEX)image * OUT_IMAGE${"".join(f" + (OUT_INDEX)(o{letters[axis]} * OUT_STEP_{capitals[axis]}{f' + first_{letters[axis]}' if many else ''}) * OUT_{capitals[axis]}" for axis in form.axes)};
% endif
</%def>
<% octets = t.bm * t.bn // 8 %>\
<%def name="octet(i)">\
      const int r = ${i} / ${t.bn // 8}, c = ${i} % ${t.bn // 8} * 8, n = n0 + c, row = group * TARGET + n;
      const OUT_INDEX out_at = place_of_row[r];
</%def>
<%def name="staged_octet()">\
        const float4 low = *(local float4 *)(staging + r * ${pitch} + c), high = *(local float4 *)(staging + r * ${pitch} + c + 4);
        const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
</%def>
<%def name="image_of(place)">\
% if t.window:
min(DIVIDED(${place}, WINDOW_IMAGE), IMAGES - 1)\
% elif many:
${place} / (${" * ".join(f"count_{letters[axis]}" for axis in form.axes)})\
% else:
DIVIDED(${place}, PIXELS)\
% endif
</%def>
% if f.scaled:
  {
% for r in range(runs * frag_m):
    const int place${r} = min(m0 + row0 + ${r // runs * core.m + core.rows[r % runs]}, m_end - 1);
% if "{image}" in form.row_mark:
    const int image${r} = ${image_of(f"place{r}")};
% endif
    const int mark${r} = marks_a[MARKS_A_AT + ${form.row_mark.format(m=f"place{r}", image=f"image{r}")}] - ${form.unshift};
% endfor
#pragma unroll
    for (int j = 0; j < ${frag_n}; ++j)
#pragma unroll
      for (int e = 0; e < ${core.width}; ++e) {
        const int n = min(n0 + column0 + j * ${core.n} + e, COLUMNS - 1);
% if not form.data:
        const int tap = DIVIDED(n, CHUNKED), c = min(n - tap * CHUNKED, SOURCE - 1);
% endif
        const int mark = marks_b[MARKS_B_AT + ${form.column_mark}];
% for r in range(runs * frag_m):
<% at = f"({r // runs * frag_n} + j) * {core.sums} + {r % runs * core.width} + e" %>\
        sum[${at}] = shifted(sum[${at}], mark${r} + mark);
% endfor
      }
  }
% endif
% if staged:
<% lines, pitch = staging %>\
  // Results pass through local memory, so that neighbouring work items write neighbouring elements.
  barrier(CLK_LOCAL_MEM_FENCE);
  {
    local float *staging = (local float *)area;
% for i in range(frag_m):
% for run, offset in enumerate(core.rows):
#pragma unroll
    for (int j = 0; j < ${frag_n}; ++j) {
      const int r = row0 + ${i * core.m + offset}, c = column0 + j * ${core.n}, at = (${i * frag_n} + j) * ${core.sums} + ${run * core.width};
% if form.nhwc and core.width == 2:
      *(local float2 *)(staging + r * ${pitch} + c) = (float2)(sum[at], sum[at + 1]);
% elif form.nhwc:
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
% if (form.nhwc or summed) and not form.stacked:
    // The offset of a row in the output, or -1; computed once for a row, not once for each of its channels.
    local OUT_INDEX *place_of_row = (local OUT_INDEX *)(staging + ${lines * pitch});
    for (int r = tid; r < ${t.bm}; r += ${items}) {
      const int m = m0 + r;
${place_of("m")}\
      place_of_row[r] = real ? out_at : -1;
    }
% endif
    barrier(CLK_LOCAL_MEM_FENCE);
% if form.stacked:
<% parts = form.stacked %>\
    // Columns are (phase, channel): neighbouring work items take neighbouring phases along w, which are contiguous.
    for (int i = tid; i < ${t.bm * parts[2]}; i += ${items}) {
      const int r = i / ${parts[2]}, fx = i % ${parts[2]}, m = m0 + r;
${place_of("m")}\
% for axis in range(3):
% if axis not in form.axes:
      const int o${letters[axis]} = 0;
% endif
% endfor
      if (real & ox * OUT_STEP_W + fx < TARGET_W)
        for (int f = 0; f < ${parts[0] * parts[1]}; ++f) {
          const int fz = f / ${parts[1]}, fy = f % ${parts[1]};
          if (oz * OUT_STEP_D + fz < TARGET_D & oy * OUT_STEP_H + fy < TARGET_H)
            for (int c = 0; c < CHANNELS; ++c) {
              const int n = (f * ${parts[2]} + fx) * CHANNELS + c - n0, row = group * CHANNELS + c;
              if (n >= 0 & n < ${t.bn})
                put(OUT_ARGS, staging[${f"r * {pitch} + n" if form.nhwc else f"n * {pitch} + r"}], out_at + (OUT_INDEX)fz * OUT_D + (OUT_INDEX)fy * OUT_H + (OUT_INDEX)fx * OUT_W + (OUT_INDEX)c * OUT_CHANNEL, row);
            }
        }
    }
% elif form.nhwc:
#if OCTETS && ${int(form.returning or residual and not form.partial)}
    // What is added, and what a norm's gradient depends on, is read for four octets before any is written, so that a read
    // does not wait for the preceding write.
    for (int first = tid; first < ${octets}; first += ${4 * items}) {
      RAW8 addend[4], before[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = min(first + u * ${items}, ${octets - 1});
${octet("i")}\
        const OUT_INDEX from = out_at >= 0 & n < TARGET ? out_at + n : 0;
        addend[u] = ${"raw8(residual + from)" if residual else "NO_RAW8"};
        before[u] = ${"raw8(saved + from)" if masked else "NO_RAW8"};
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = first + u * ${items};
        if (i >= ${octets}) continue;
${octet("i")}\
        if (out_at >= 0 & n < TARGET) {
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
      if (out_at >= 0 & n < TARGET) {
${staged_octet()}\
#if OCTETS
        put8(v, out_at + n, row);
#else
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (n + e < TARGET) ${f"staging[r * {pitch} + c + e] = put_stored" if form.returning else "put"}(OUT_ARGS, v[e], out_at + n + e, row + e);
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
      const int columns = min(${t.bn}, TARGET - n0);
      if (real)
#pragma unroll 4
        for (int c = tid / ${rows_at_once}; c < columns; c += ${columns_at_once})
          ${f"staging[c * {pitch} + r] = put_stored" if summed else "put"}(OUT_ARGS, staging[c * ${pitch} + r], out_at + (OUT_INDEX)(n0 + c) * OUT_CHANNEL, group * TARGET + n0 + c);
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
% if form.data:
${place_of("m")}\
    if (real)
#pragma unroll
      for (int j = 0; j < ${frag_n}; ++j) {
        const int n = n0 + column0 + j * ${core.n}, row = group * TARGET + n;
% if core.width == 1:
        if (n < TARGET) put(OUT_ARGS, sum[(${i * frag_n} + j) * ${core.sums} + ${run}], out_at + (OUT_INDEX)n * OUT_CHANNEL, row);
% else:
        const float v0 = sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2}], v1 = sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2 + 1}];
#if PAIRS
        if (n < TARGET) put2(OUT_ARGS, v0, v1, out_at + n, row);
#else
        if (n < TARGET) put(OUT_ARGS, v0, out_at + (OUT_INDEX)n * OUT_CHANNEL, row);
        if (n + 1 < TARGET) put(OUT_ARGS, v1, out_at + (OUT_INDEX)(n + 1) * OUT_CHANNEL, row + 1);
#endif
% endif
      }
% else:
    const OUT_INDEX out_at = ((OUT_INDEX)(part * GROUPS + group) * TARGET + m) * COLUMNS;
    if (m < m_end)
#pragma unroll
      for (int j = 0; j < ${frag_n}; ++j) {
        const int n = n0 + column0 + j * ${core.n};
% if core.width == 2:
        if (n < COLUMNS) put2(OUT_ARGS, sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2}], sum[(${i * frag_n} + j) * ${core.sums} + ${run * 2 + 1}], out_at + n, 0);
% else:
        if (n < COLUMNS) put(OUT_ARGS, sum[(${i * frag_n} + j) * ${core.sums} + ${run}], out_at + n, 0);
% endif
      }
% endif
  }
% endfor
% endfor
% endif
