## Computes the powers of two of ``scales.py`` in three launches: the exponent of every plane's largest finite magnitude
## (``exponents``), one for each summed index (``norms``), one for each row of A and column of B (``marks``).
##
## planes  (Planes, offset of its table in bytes) of each tensor that ``exponents`` searches
## norms   B's (Planes, offset of its table in bytes, offset of its norms in ints), or None
## marks   (Planes, offset of its table in bytes, offsets of norms and marks in ints, +1 for A and -1 for B) of each
%if planes:
inline float finite(float v) { return fabs(v) <= 3.4028235e38f ? fabs(v) : 0; }
// The exponent of a plane's largest finite magnitude, biased as float32's; 0 if all values are zero, infinite or NaN. A
// work group searches SIDE planes of neighbouring channels, with LANES work items each.
<% args = ", ".join(f"global const float *restrict from{i}, global uchar *restrict to{i}" for i in range(len(planes))) %>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void exponents(${args}${", global const float *restrict norm" if of_norm else ""}) {
  local float shared[256];
  const int tid = get_local_id(0);
  int rest = get_group_id(0), lane = 0, lanes = 1, apart = 1;
  global uchar *to = to0;
  float most = 0;
  int writes = 0;
<% begin = 0 %>\
% for i, (p, at) in enumerate(planes):
  if (rest >= ${begin} && rest < ${begin + p.work_groups}) {
    rest -= ${begin};
    const int part = rest % ${p.parts}, block = rest / ${p.parts} % ${p.blocks};
    const int outer = rest / ${p.parts * p.blocks} % ${p.outer}, group = rest / ${p.parts * p.blocks * p.outer};
    const int channel = block * ${p.side} + ${f"tid % {p.side}" if p.near else f"tid / {p.lanes}"};
    lane = ${f"tid / {p.side}" if p.near else f"tid % {p.lanes}"};
    lanes = ${p.lanes};
    apart = ${p.side if p.near else 1};
    writes = lane == 0 && channel < ${p.channels};
    to = to${i} + ${at}L + ${p.cell("group", "outer", "channel", "part")};
    if (channel < ${p.channels}) {
      global const float *from = from${i} + (long)group * ${p.steps[0]} + (long)outer * ${p.steps[1]} + (long)channel * ${p.steps[2]};
      const int begin = ${f"(int)((long){p.reads} * part / {p.parts})"}, end = ${f"(int)((long){p.reads} * (part + 1) / {p.parts})"};
#pragma unroll 8
      for (int i = begin + lane; i < end; i += ${p.lanes}) {
% if p.width == 4:
<% c, normed = f"group * {p.channels} + channel", of_norm and p.name == "x" %>\
        const float4 q = ${f"normed4(norm, ((global const float4 *)from)[i], {c})" if normed else "((global const float4 *)from)[i]"};
        most = max(max(max(most, finite(q.x)), max(finite(q.y), finite(q.z))), finite(q.w));
% else:
<% c, normed = f"group * {p.channels} + channel", of_norm and p.name == "x" %>\
        most = max(most, finite(${f"normed(norm, from[(long)i * {p.steps[3]}], {c})" if normed else f"from[(long)i * {p.steps[3]}]"}));
% endif
      }
    }
    rest = -1;
  }
<% begin += p.work_groups %>\
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
%endif
%if norms:
<% p, table, at = norms %>\
// The norm of a summed index: its mean exponent, or the largest exponent less ${reach}, whichever is larger.
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void norms(global uchar *restrict marks) {
  local int total[256], count[256], most[256];
  const int tid = get_local_id(0), k = get_group_id(0) % ${-(-p.k // 16)} * 16 + tid % 16, group = get_group_id(0) / ${-(-p.k // 16)};
  total[tid] = count[tid] = most[tid] = 0;
  if (k < ${p.k}) {
    global const uchar *from = marks + ${table}L + (long)group * ${p.rows * p.parts * p.k} + k;
#pragma unroll 8
    for (int row = tid / 16; row < ${p.rows * p.parts}; row += 16) {
      const int e = from[(long)row * ${p.k}];
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
  if (tid < 16 && k < ${p.k})
    ((global int *)marks)[${at} + group * ${p.k} + k] = count[tid] ? max(total[tid] / max(count[tid], 1), most[tid] - ${reach}) - 127 : ${nothing};
}
%endif
%if marks:
// The largest exponent of a row of A, or column of B, after its summed indices' norms; 0 if all its values are zero.
<% args = ", ".join(f"global uchar *restrict table{i}, global const int *restrict norms{i}" for i in range(len(marks))) %>\
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void marks(${args}) {
  local int shared[256];
  const int tid = get_local_id(0), lane = tid % 32;
  const int row = get_group_id(0) * 8 + tid / 32;
  int most = ${nothing}, at = -1;
  global int *to = (global int *)table0;
<% begin = 0 %>\
% for i, (p, table, norms_at, marks_at, sign) in enumerate(marks):
  if (row >= ${begin} && row < ${begin + p.groups * p.rows}) {
    const int group = (row - ${begin}) / ${p.rows};
    global const uchar *from = table${i} + ${table}L + (long)(row - ${begin}) * ${p.parts * p.k};
    to = (global int *)table${i};
    at = ${marks_at} + row - ${begin};
#pragma unroll 4
    for (int i = lane; i < ${p.parts * p.k}; i += 32) {
      const int e = from[i], norm = norms${i}[${norms_at} + group * ${p.k} + i % ${p.k}];
      if (e > 0 && norm != ${nothing}) most = max(most, e - 127 ${"+" if sign > 0 else "-"} norm);
    }
  }
<% begin += p.groups * p.rows %>\
% endfor
  shared[tid] = most;
  for (int reach = 16; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < reach) shared[tid] = max(shared[tid], shared[tid + reach]);
  }
  if (lane == 0 && at >= 0) to[at] = shared[tid] == ${nothing} ? 0 : shared[tid];
}
%endif
