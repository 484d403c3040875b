## Parts of a sum that the last work group of a tile adds (``parts.cl.mako``): 16 rows of every warp at a time. To wait for the
## others and share the adding, where all run together, took 0.98 to 1.11 times as long on an H200.
<%namespace name="epilogue" file="epilogue.cl.mako"/>\
<%def name="write()">\
  const int whole = (group * M_TILES + m_tile) * N_TILES + n_tile;
  global float4 *parts = (global float4 *)workspace + (long)whole * ${t.split * tile_sums} + tid;
  global ulong *state = (global ulong *)(workspace + STATES_AT) + whole;
  local int *shared = (local int *)(memory + ${-(-f.local_bytes // 16) * 16 - 16});
${unroll}
  for (int i = 0; i < ${t.frag_m * t.frag_n}; ++i)
    parts[part * ${tile_sums} + i * ${t.items}] = (float4)(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
  warps_meet(${t.items});
  if (tid == 0) arrive(state, MAGIC), *shared = take(state, MAGIC, SPLIT, 0);
  warps_meet(${t.items});
  const int blocks = *shared < 0 ? 0 : ${t.frag_m};  // parts are missing still: the last work group adds them
  for (int block = 0; block < blocks; ++block) {
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
</%def>
