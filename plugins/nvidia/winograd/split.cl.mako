## A float32 as planes of 16-bit numbers; and the search for tensors' scales.
<% planes, bfloat = job.format.planes, job.format.bfloat %>\
inline void split(ushort *part, float v) {
  const int finite = fabs(v) <= 3.4028235e38f;
#pragma unroll
  for (int p = 0; p < ${planes}; ++p) {
    part[p] = narrow(v);
% if bfloat:
    if (finite && (part[p] & 0x7fff) == 0x7f80) part[p] = (ushort)(as_uint(v) >> 16);  // rounding up would overflow
% endif
    v = finite ? v - widen(part[p]) : 0;  // an infinity has no rest
  }
}
% if searched:
kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void magnitudes(${", ".join(f"global const float *restrict from{i}, global float *restrict to{i}" for i in range(len(searched)))}) {
  local float shared[256];
  const int tid = get_local_id(0), piece = get_group_id(0) / SEARCHERS, group = get_group_id(0) % SEARCHERS;
% for i, (elements, at) in enumerate(searched):
  if (piece == ${i}) shared[tid] = largest_of(from${i}, ${elements}, group, tid);
% endfor
  const float most = largest_of_all(shared, tid);
% for i, (elements, at) in enumerate(searched):
  if (piece == ${i} && tid == 0) to${i}[${at + 1} + group] = most;
% endfor
}
% endif
