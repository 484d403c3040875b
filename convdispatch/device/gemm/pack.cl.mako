## packed[((z * PANELS + i / W) * K + k) * W + i % W] = X[z, i, k]: an operand's panels (see layout.py).
//
// I, K        sizes of the operand
// SIZES       declarations of the sizes if they are kernel arguments, so that one program packs operands of all sizes
// W           panel width; PANELS = ceil(I / W)
// KCHUNK      length along k that a work item packs, of GROUP panels (CPU form)
// X_BATCH(z), X_I(i), X_K(k)  element offsets in the source
// PACKED_BATCH: z counts distinct operands; Z(z) is the first batch that uses it
% if elementwise:
kernel void pack(global const REAL *restrict x, long x_off, global ACC *restrict packed, long packed_off) {
  // Each work item packs one element, and neighbouring work items write neighbouring elements.
  const int lane = get_global_id(0), k = get_global_id(1), panel = get_global_id(2) % PANELS;
  const int z = get_global_id(2) / PANELS, i = panel * W + lane;
  x += x_off + X_BATCH(Z(z));
  packed[packed_off + (((long)z * PANELS + panel) * K + k) * W + lane] = i < I ? LOAD(x, X_I(i) + X_K(k)) : (ACC)0;
}
% else:
#include <convdispatch/lanes.cl>
#define BLOCK ${lanes}
% if narrow:
// Packs panels that are narrower than a vector: what a vector writes beyond its own k is overwritten by the next k.
typedef WITH_LANES(ACC, ${narrow}, ) __attribute__((aligned(sizeof(ACC)))) wide;
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict x, long x_off, global ACC *restrict packed, long packed_off SIZES) {
  const int k0 = get_global_id(0) * KCHUNK, panel0 = get_global_id(1) * GROUP, z = get_global_id(2);
  const int k1 = min(K, k0 + KCHUNK), panel1 = min(PANELS, panel0 + GROUP);
  x += x_off + X_BATCH(Z(z));
  packed += packed_off + (long)z * PANELS * ((long)K * W);
  ONCE for (int k = k0; k < k1; ++k)
    ONCE for (int panel = panel0; panel < panel1; ++panel) {
      const int i0 = panel * W;
      global const REAL *from = x + X_K(k) + i0;
      global ACC *to = packed + ((long)panel * K + k) * W;
      if (k + 1 < k1 && i0 + ${narrow} <= I) *(global wide *)to = *(global const wide *)from;
      else ONCE for (int lane = 0; lane < W; ++lane) to[lane] = i0 + lane < I ? LOAD(from, lane) : (ACC)0;
    }
}
% else:

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict x, long x_off, global ACC *restrict packed, long packed_off SIZES) {
  const int k0 = get_global_id(0) * KCHUNK, panel = get_global_id(1), z = get_global_id(2);
  const int k1 = min(K, k0 + KCHUNK), i0 = panel * W, count = min(W, I - i0);
  x += x_off + X_BATCH(Z(z));
  packed += packed_off + ((long)z * PANELS + panel) * ((long)K * W);
  if (count < W)
    for (int k = k0; k < k1; ++k)
      for (int lane = count; lane < W; ++lane) packed[(long)k * W + lane] = 0;
% if vectors:
  if (count == W${f" && i0 % {run} + W <= {run}" if run else ""}) {  // the panel is complete and its rows are contiguous, so vectors are copied
    global const REAL *p = x + X_I(i0);
    for (int k = k0; k < k1; ++k) {
      const long row = X_K(k);
% for v in range(width // lanes):
      STOREW(packed + (long)k * W + ${v * lanes}, LOADV(p + row + ${v * lanes}));
% endfor
    }
    return;
  }
  ONCE for (int lane = 0; lane < count; lane += LANES) {
    const int i = i0 + lane, some = min(LANES, count - lane);
    if (some == LANES${f" && i % {run} + LANES <= {run}" if run else ""}) {
      global const REAL *p = x + X_I(i);
      ONCE for (int k = k0; k < k1; ++k) STOREW(packed + (long)k * W + lane, LOADV(p + X_K(k)));
    } else
      ONCE for (int k = k0; k < k1; ++k)
        ONCE for (int q = 0; q < some; ++q) packed[(long)k * W + lane + q] = LOAD(x, X_I(i + q) + X_K(k));
  }
% else:
% if k_unit:
  // Rows are contiguous along k: runs along k are short, so that the scattered writes stay in the first-level cache.
  for (int k = k0, end; k < k1; k = end) {
    end = min(k1, k + BLOCK);
% if k_run:
    end = min(end, k - k % ${k_run} + ${k_run});  // the end of a contiguous run
% endif
    const long col = X_K(k);
% if width % lanes == 0:
    if (end - k == BLOCK && count == W) {  // blocks are transposed in registers
      __attribute__((opencl_unroll_hint(1)))
      for (int lane = 0; lane < W; lane += BLOCK) {
        global const REAL *from = x + col;
        global ACC *to = packed + (long)k * W + lane;
        // Processors do not prefetch by themselves from so many rows that are far apart.
% for i in range(lanes):
        __builtin_prefetch((const void *)(size_t)(from + X_I(i0 + lane + ${i}) + 64));
        const V t0_${i} = LOADV(from + X_I(i0 + lane + ${i}));
% endfor
<% stages = lanes.bit_length() - 1 %>\
${transposed(lanes)}
% for i in range(lanes):
        STOREW(to + ${i} * W, t${stages}_${i});
% endfor
      }
      continue;
    }
% endif
    if (end - k == BLOCK)
      for (int lane = 0; lane < count; ++lane) {
        const long row = X_I(i0 + lane);
        union { V v; ACC s[BLOCK]; } u;
        u.v = LOADV(x + row + col);
        for (int q = 0; q < BLOCK; ++q) packed[(long)(k + q) * W + lane] = u.s[q];
      }
    else
      for (int lane = 0; lane < count; ++lane)
        for (int q = k; q < end; ++q) packed[(long)q * W + lane] = LOAD(x, X_I(i0 + lane) + col + (q - k));
  }
% else:
  for (int k = k0; k < k1; ++k)
    if (count == W)
      for (int lane = 0; lane < W; ++lane) packed[(long)k * W + lane] = LOAD(x, X_I(i0 + lane) + X_K(k));
    else
      for (int lane = 0; lane < count; ++lane) packed[(long)k * W + lane] = LOAD(x, X_I(i0 + lane) + X_K(k));
% endif
% endif
}
% endif
% endif
