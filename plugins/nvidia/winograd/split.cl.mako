## A float32 as two planes of 16-bit numbers, the larger in the lower half; and the search for tensors' scales.
#define FIRST(a, b) (((a) & 0xffffu) | (b) << 16)
#define SECOND(a, b) ((a) >> 16 | ((b) & 0xffff0000u))
inline uint split(float v) {
  const ushort high = narrow(v);
  const float rest = fabs(v) <= 3.4028235e38f ? v - widen(high) : 0;  // an infinity has no rest
  return high | (uint)narrow(rest) << 16;
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
