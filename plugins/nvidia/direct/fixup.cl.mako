## Parts of a sum that work groups of this launch add (``parts.cl.mako`` says who): 16 rows of every warp at a time.
<%namespace name="epilogue" file="epilogue.cl.mako"/>\
<%def name="write()">\
  const int whole = (group * ${tiling.m_tiles} + m_tile) * ${tiling.n_tiles} + n_tile;
  global float4 *parts = (global float4 *)workspace + (long)whole * ${t.split * tile_sums} + tid;
  global ulong *state = (global ulong *)(workspace + ${tiling.states_at}L) + whole;
  local int *shared = (local int *)(memory + ${-(-tiling.local_bytes // 16) * 16 - 16});
${unroll}
  for (int i = 0; i < ${t.frag_m * t.frag_n}; ++i)
    parts[part * ${tile_sums} + i * ${t.items}] = (float4)(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
  warps_meet(${t.items});
  if (tid == 0) arrive(state);
  for (;;) {
    if (tid == 0) *shared = take(state, ${"POLLS" if waits else 0});
    warps_meet(${t.items});
    const int first = *shared;
    if (first < 0) break;
    for (int block = first; block < ${"first + 1" if waits else t.frag_m}; ++block) {
    float whole_sum[${t.frag_n * 4}];
${unroll}
    for (int j = 0; j < ${t.frag_n * 4}; ++j) whole_sum[j] = 0;
    for (int i = 0; i < ${t.split}; ++i) {
${unroll}
      for (int j = 0; j < ${t.frag_n}; ++j) {
        const float4 v = load_written(parts + i * ${tile_sums} + (block * ${t.frag_n} + j) * ${t.items});
        whole_sum[j * 4] += v.x, whole_sum[j * 4 + 1] += v.y, whole_sum[j * 4 + 2] += v.z, whole_sum[j * 4 + 3] += v.w;
      }
    }
${unroll}
    for (int j = 0; j < ${t.frag_n}; ++j) {
${epilogue.stage("whole_sum", 0, f"warp % {t.wm} * 16 + lane / 4")}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
${epilogue.leave(t.wm * 16, f"m0 + r / 16 * {t.bm // t.wm} + block * 16 + r % 16")}\
    barrier(CLK_LOCAL_MEM_FENCE);
    }
% if not waits:
    break;
% endif
  }
</%def>
