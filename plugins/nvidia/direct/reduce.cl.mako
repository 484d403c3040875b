## out = epilogue(sum of the parts, in an order that only their number decides).
##
## split  parts; elements: of a part, which lies as the output does
## lanes  work items of an element: lane i adds parts i, i + lanes, ...; then the lanes' sums are added in order
## inner, channels  elements from channel to channel, and how many channels
<% width = 256 // lanes %>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void reduce(global const float *restrict partial, OUT_PARAMS) {
  const int lane = get_local_id(0) / ${width};
  const OUT_INDEX i = (OUT_INDEX)get_group_id(0) * ${width} + get_local_id(0) % ${width};
  float v = 0;
  if (i < ${elements})
#pragma unroll 4
    for (int part = lane; part < ${split}; part += ${lanes}) v += partial[(OUT_INDEX)part * ${elements} + i];
% if lanes > 1:
  local float sums[256];
  sums[get_local_id(0)] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lane == 0)
    for (int other = 1; other < ${lanes}; ++other) v += sums[other * ${width} + get_local_id(0)];
% endif
  if (lane == 0 && i < ${elements}) put(OUT_ARGS, v, i, i / ${inner} % ${channels});
}
