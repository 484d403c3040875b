## Computes the powers of two of ``scales.py`` in three launches: the exponent of every plane's largest finite magnitude
## (``exponents``), one for each summed index (``norms``), one for each row of A and column of B (``marks``). Of a geometry
## the text has the numbers' names alone (``Scales.numbers``); those of a tensor end with its number.
##
## kernel   the kernel to render
## tensors  ``Reads`` of each tensor whose scales are computed
## b        B's number among them
## signs    of each tensor, "+" for A and "-" for B
%if kernel == "exponents":
inline float finite(float v) { return fabs(v) <= 3.4028235e38f ? fabs(v) : 0; }
// The exponent of a plane's largest finite magnitude, biased as float32's; 0 if all values are zero, infinite or NaN. A
// work group searches 2^SIDE_SHIFT planes of neighbouring channels, with as many work items each.
<% args = ", ".join(f"global const float *restrict from{i}, global uchar *restrict to{i}" for i in range(len(tensors))) %>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void exponents(${args}${", global const float *restrict norm" if of_norm else ""} NUMBERS) {
  local float shared[256];
  const int tid = get_local_id(0);
  int rest = get_group_id(0), lane = 0, lanes = 1, apart = 1;
  global uchar *to = to0;
  float most = 0;
  int writes = 0;
% for i, p in enumerate(tensors):
  if (rest >= 0 && rest < GROUPS${i}) {
    const int blocks = DIVIDED(rest, PARTS${i}), part = rest - blocks * PARTS${i};
    const int planes = DIVIDED(blocks, BLOCKS${i}), block = blocks - planes * BLOCKS${i};
    const int group = DIVIDED(planes, OUTER${i}), outer = planes - group * OUTER${i};
    lanes = 256 >> SIDE_SHIFT${i};
% if p.near:
    const int channel = (block << SIDE_SHIFT${i}) + (tid & ((1 << SIDE_SHIFT${i}) - 1));
    lane = tid >> SIDE_SHIFT${i};
    apart = 1 << SIDE_SHIFT${i};
% else:
    const int channel = (block << SIDE_SHIFT${i}) + (tid >> (8 - SIDE_SHIFT${i}));
    lane = tid & (lanes - 1);
    apart = 1;
% endif
    writes = lane == 0 && channel < CHANNELS${i};
    to = to${i} + TABLE${i} + (((long)group * ROWS${i} + ${"channel" if p.outer_summed else "outer"}) * PARTS${i} + part) * K${i} + ${"outer" if p.outer_summed else "channel"};
    if (channel < CHANNELS${i}) {
      global const float *from = from${i} + (long)group * GROUP_STEP${i} + (long)outer * OUTER_STEP${i} + (long)channel * CHANNEL_STEP${i};
      const int begin = PARTS${i} > 1 ? (int)((long)READS${i} * part / PARTS${i}) : 0;
      const int end = PARTS${i} > 1 ? (int)((long)READS${i} * (part + 1) / PARTS${i}) : READS${i};
<% c, normed = f"group * CHANNELS{i} + channel", p.of_norm %>\
#pragma unroll 8
      for (int i = begin + lane; i < end; i += lanes) {
% if p.width == 4:
        const float4 q = ${f"normed4(norm, ((global const float4 *)from)[i], {c})" if normed else "((global const float4 *)from)[i]"};
        most = max(max(max(most, finite(q.x)), max(finite(q.y), finite(q.z))), finite(q.w));
% else:
        most = max(most, finite(${f"normed(norm, from[(long)i * PIXEL_STEP{i}], {c})" if normed else f"from[(long)i * PIXEL_STEP{i}]"}));
% endif
      }
    }
    rest = -1;
  } else
    rest -= GROUPS${i};
% endfor
  shared[tid] = most;
  for (int reach = 128; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (reach < lanes && lane < reach) shared[tid] = max(shared[tid], shared[tid + reach * apart]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  most = shared[tid];
  if (writes) *to = (uchar)(most > 0 ? max((int)(as_uint(most) >> 23), ${least}) : 0);
}
%elif kernel == "norms":
// The norm of a summed index: its mean exponent, or the largest exponent less ${reach}, whichever is larger.
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void norms(global uchar *restrict marks NUMBERS) {
  local int total[256], count[256], most[256];
  const int tid = get_local_id(0), number = get_group_id(0);
  const int group = DIVIDED(number, K_BLOCKS${b}), k = (number - group * K_BLOCKS${b}) * 16 + tid % 16;
  total[tid] = count[tid] = most[tid] = 0;
  if (k < K${b}) {
    const int rows = ROWS${b} * PARTS${b};
    global const uchar *from = marks + TABLE${b} + (long)group * rows * K${b} + k;
#pragma unroll 8
    for (int row = tid / 16; row < rows; row += 16) {
      const int e = from[(long)row * K${b}];
      total[tid] += e;
      count[tid] += e > 0;
      most[tid] = max(most[tid], e);
    }
  }
  for (int reach = 128; reach >= 16; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (tid < reach) {
      total[tid] += total[tid + reach];
      count[tid] += count[tid + reach];
      most[tid] = max(most[tid], most[tid + reach]);
    }
  }
  if (tid < 16 && k < K${b})
    ((global int *)marks)[NORMS + group * K${b} + k] = count[tid] ? max(total[tid] / max(count[tid], 1), most[tid] - ${reach}) - 127 : ${nothing};
}
%else:
// The largest exponent of a row of A, or column of B, after its summed indices' norms; 0 if all its values are zero.
<% args = ", ".join(f"global uchar *restrict table{i}, global const int *restrict norms{i}" for i in range(len(tensors))) %>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void marks(${args} NUMBERS) {
  local int shared[256];
  const int tid = get_local_id(0), lane = tid % 32;
  int row = get_group_id(0) * 8 + tid / 32, most = ${nothing}, at = -1;
  global int *to = (global int *)table0;
% for i, sign in enumerate(signs):
  if (row >= 0 && row < ALL_ROWS${i}) {
    const int group = DIVIDED(row, ROWS${i}), cells = PARTS${i} * K${i};
    global const uchar *from = table${i} + TABLE${i} + (long)row * cells;
    to = (global int *)table${i};
    at = MARKS${i} + row;
#pragma unroll 4
    for (int i = lane; i < cells; i += 32) {
      const int whole = DIVIDED(i, K${i});
      const int e = from[i], norm = norms${i}[NORMS + group * K${i} + i - whole * K${i}];
      if (e > 0 && norm != ${nothing}) most = max(most, e - 127 ${sign} norm);
    }
    row = -1;
  } else
    row -= ALL_ROWS${i};
% endfor
  shared[tid] = most;
  for (int reach = 16; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < reach) shared[tid] = max(shared[tid], shared[tid + reach]);
  }
  if (lane == 0 && at >= 0) to[at] = shared[tid] == ${nothing} ? 0 : shared[tid];
}
%endif
