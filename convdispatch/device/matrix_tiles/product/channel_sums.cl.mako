## The sums of the tile's channels, of the results as they are stored, which ``results`` left in local memory. A part of
## ``results.cl.mako``.
##
## A work item reads four numbers at once: of four channels (channels last), or four rows of one channel, which are summed
## apart. The work items of a channel are merged in their order.
<%
nhwc, slope, pitch = form.nhwc, form.masked, staging[1]
rows = 2 if slope else 3
vectors, step = (t.bn // 4, 1) if nhwc else (t.bn, 4)
lanes = max(1, min(16, t.bm // 4, items // vectors))
rounds = -(-t.bm // step // lanes)
def real(e):
    return "place_of_row[r] >= 0" if nhwc else f"place_of_row[r + {e}] >= 0"
def exists(e):
    return real(e) + (f" & n0 + c{f' + {e}' if nhwc else ''} < TARGET" if form.ragged else "")
def place(e):
    return f"place_of_row[r] + n0 + c + {e}" if nhwc else f"place_of_row[r + {e}] + (OUT_INDEX)(n0 + c) * OUT_CHANNEL"
%>\
<%def name="sums_of_columns()">\
      const int c = unit % ${vectors}${" * 4" if nhwc else ""}, lane_of_column = unit / ${vectors};
% if slope:
      ACC center[4];
      for (int e = 0; e < 4; ++e) center[e] = norm[group * TARGET + min(n0 + c${" + e" if nhwc else ""}, TARGET - 1)];
% endif
      for (int e = 0; e < 4; ++e) total[e].count = total[e].mean = total[e].squares = 0;
      for (int block = 0; block < ${rounds}; block += 8) {
        block_sums b[4];
        ACC n[4] = {0, 0, 0, 0};
        for (int e = 0; e < 4; ++e) b[e].origin = b[e].sum = b[e].squares = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int r = ((block + i) * ${lanes} + lane_of_column) * ${step};
          if (r < ${t.bm}) {
            const float4 v = *(local const float4 *)(staging + ${f"r * {pitch} + c" if nhwc else f"c * {pitch} + r"});
% for e, letter in enumerate("xyzw"):
% if slope:
            if (${exists(e)}) {
              b[${e}].sum += v.${letter};
              b[${e}].squares += v.${letter} * (LOAD(saved, ${place(e)}) - center[${e}]);
            }
% else:
            if (${real(e)}) {
              add_to_block(&b[${e}], v.${letter}, n[${e}] == 0);
              n[${e}] += 1;
            }
% endif
% endfor
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
% if slope:
          total[e].mean += b[e].sum;
          total[e].squares += b[e].squares;
% else:
          total[e] = merged(total[e], moments_of_block(b[e], n[e]));
% endif
        }
      }
% if not nhwc:
      for (int e = 1; e < 4; ++e) ${"total[0].mean += total[e].mean, total[0].squares += total[e].squares" if slope else "total[0] = merged(total[0], total[e])"};
% endif
</%def>
<%def name="leave(c, total)">\
      if (n0 + ${c} < TARGET) {
        global ACC *to = channel_parts + SUMS_AT + (long)(number * M_TILES + m_tile) * ${rows} * TARGET * GROUPS + group * TARGET + n0 + ${c};
% if not slope:
        *to = ${total}.count;
        to += TARGET * GROUPS;
% endif
        to[0] = ${total}.mean;
        to[TARGET * GROUPS] = ${total}.squares;
      }
</%def>
    barrier(CLK_LOCAL_MEM_FENCE);
% if lanes == 1:
    for (int unit = tid; unit < ${vectors}; unit += ${items}) {
      moments total[4];
${sums_of_columns()}\
% for e in range(4 if nhwc else 1):
${leave(f"c + {e}", f"total[{e}]")}\
% endfor
    }
% else:
    local moments *column_sums = (local moments *)area;
    const int unit = tid;
    moments total[4];
    if (unit < ${lanes * vectors}) {
${sums_of_columns()}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (unit < ${lanes * vectors})
      for (int e = 0; e < ${4 if nhwc else 1}; ++e) column_sums[unit / ${vectors} * ${t.bn} + unit % ${vectors}${" * 4" if nhwc else ""} + e] = total[e];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int c = tid; c < ${t.bn}; c += ${items}) {
      moments column = column_sums[c];
      for (int other = 1; other < ${lanes}; ++other) {
        const moments next = column_sums[other * ${t.bn} + c];
        ${"column.mean += next.mean, column.squares += next.squares" if slope else "column = merged(column, next)"};
      }
${leave("c", "column")}\
    }
% endif
