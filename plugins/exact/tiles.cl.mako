## C of order.cl. A work group has BM x BN chains, a work item TM x TN of them, in quads; slices of BK k's are in local
## memory, the next one in registers.
//
// BM, BN, BK, TM, TN  tile of a work group, depth of its slices, tile of a work item; ITEMS work items, TX of them along n
// COUNT               channels of each block where all have as many, else 0
// SPLIT               1: a work group sums one image of a weights' gradient; reduce adds the images in order
#include <convdispatch/output.cl>
#define ACC4 ${vector}
<% quads = [(i, j) for i in range(tm // 4) for j in range(tn // 4)] %>

// The source's element, +0 outside.
inline ACC source_at(global const ACC *restrict x, int image, int channel, int z, int y, int u) {
  if ((uint)z >= XD || (uint)y >= XH || (uint)u >= XW) return 0;
  return NHWC ? x[((((long)image * XD + z) * XH + y) * XW + u) * (C * G) + channel]
              : x[((((long)image * C * G + channel) * XD + z) * XH + y) * XW + u];
}
// The k of the i-th element of a slice of B that this work item loads. In fours they are neighbours, channels of one place.
#define K_(i) ${"(tid / BN + (i) / 4 * (ITEMS / BN)) * 4 + (i) % 4" if fours else "tid / BN + (i) * (ITEMS / BN)"}
<%def name="step(kk)">
% for i in range(tm // 4):
        const ACC4 a${i} = *(local const ACC4 *)(sa + (${kk}) * BM + ${i} * (BM * 4 / TM) + ty * 4);
% endfor
% for j in range(tn // 4):
        const ACC4 b${j} = *(local const ACC4 *)(sb + (${kk}) * BN + ${j} * (BN * 4 / TN) + tx * 4);
% endfor
% for i, j in quads:
% for r in range(4):
        acc${i}_${j}_${r} = fma((ACC4)(a${i}.s${r}), b${j}, acc${i}_${j}_${r});
% endfor
% endfor
</%def>
<%def name="each(text)">\
% for i, j in quads:
${" ".join(text.replace("$", "own" if weights else "total").replace("@", f"{i}_{j}_{r}") for r in range(4))}
% endfor
</%def>\
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void tiles(global const ACC *restrict x, global const ACC *restrict packed, long packed_off, OUT_PARAMS) {
  // Two slices: while one is multiplied the next one is written, so that a slice takes one barrier.
  local ACC slices_a[2 * BK * BM] __attribute__((aligned(32))), slices_b[2 * BK * BN] __attribute__((aligned(32)));
  int slice = 0;
  const int tid = get_local_id(0), tx = tid % TX, ty = tid / TX, g = get_group_id(2) / SPLITS;
  const int m0 = get_group_id(1) * BM, n0 = get_group_id(0) * BN;
  packed += packed_off + ((long)(g * MB + get_group_id(1)) * KA) * BM;
  // The column that this work item loads, in every BN-th element of its slices.
  const int n = n0 + tid % BN, within = n < COLUMNS;
% if weights:
  const int tap = TAP_OF(n), channel = g * C + CHANNEL_OF(n);
  const int z0 = OD + tap / (TW * TH) * DD, y0 = OH + tap / TW % TH * DH, u0 = OW + tap % TW * DW;
  const int block0 = SPLIT ? get_group_id(2) % SPLITS * IMAGE : 0, block1 = SPLIT ? block0 + IMAGE : BLOCKS;
% else:
  const int place = n % PLACES, image = n / PLACES;
  const int z0 = OD + place / (YW * YH) * SD, y0 = OH + place / YW % YH * SH, u0 = OW + place % YW * SW;
% endif
  ACC4 ${", ".join(f"acc{i}_{j}_{r} = 0, total{i}_{j}_{r} = 0" for i, j in quads for r in range(4))};
% if weights:
  ACC4 ${", ".join(f"own{i}_{j}_{r} = 0" for i, j in quads for r in range(4))};
  for (int block = block0; block < block1; ++block) {
    const int image = block / IMAGE, z = block % IMAGE / (IMAGE / YD), first = block % (IMAGE / YD) * CB;
    const int k1 = min(CB, YH - first) * YW;
    global const ACC *a = packed + (((long)image * YD + z) * YH + first) * YW * BM;
#define B_AT(k) source_at(x, image, channel, z0 + z * SD, y0 + (first + (k) / YW) * SH, u0 + (k) % YW * SW)
% else:
  for (int block = 0; block < BLOCKS; ++block) {
    const int cb = block * CB, count = COUNT ? COUNT : min(CB, C - cb), k1 = EMPTY ? 0 : count * TAPS;
    global const ACC *a = packed + (long)cb * TAPS * BM;
#define TAP_(k) ((k) / (COUNT ? COUNT : count))
#define B_AT(k) source_at(x, image, g * C + cb + (k) % (COUNT ? COUNT : count), z0 + TAP_(k) / (TW * TH) * DD, \
                          y0 + TAP_(k) / TW % TH * DH, u0 + TAP_(k) % TW * DW)
% endif
    ACC ${", ".join([f"na{i}" for i in range(a_loads)] + [f"nb{i}" for i in range(b_loads)])};
#define NEXT(k0) { \
% for i in range(a_loads):
      na${i} = ((k0) + (tid + ${i} * ITEMS) / BM < k1) ? a[(k0) * (long)BM + tid + ${i} * ITEMS] : (ACC)0; ${"\\"}
% endfor
% if whole:
      const int tap = (k0) / COUNT, z = z0 + tap / (TW * TH) * DD, y = y0 + tap / TW % TH * DH, u = u0 + tap % TW * DW; ${"\\"}
      const int inside = within && (k0) < k1 && (uint)z < XD && (uint)y < XH && (uint)u < XW; ${"\\"}
      const int c = g * C + cb + (k0) % COUNT; ${"\\"}
      global const ACC *from = x + (NHWC ? (((image * (long)XD + z) * XH + y) * XW + u) * (C * G) + c ${"\\"}
                                         : (((image * (long)(C * G) + c) * XD + z) * XH + y) * XW + u); ${"\\"}
% if aligned:
% for i in range(0, b_loads, 4):
      { const ACC4 four = inside ? *(global const ACC4 *)(from + K_(${i})) : (ACC4)(0); nb${i} = four.x; nb${i + 1} = four.y; nb${i + 2} = four.z; nb${i + 3} = four.w; } ${"\\"}
% endfor
% else:
% for i in range(b_loads):
      nb${i} = inside ? from[(K_(${i})) * (NHWC ? 1 : (long)XD * XH * XW)] : (ACC)0; ${"\\"}
% endfor
% endif
% else:
% for i in range(b_loads):
      { const int k = (k0) + K_(${i}); nb${i} = (within && k < k1) ? B_AT(k) : (ACC)0; } ${"\\"}
% endfor
% endif
    }
    NEXT(0)
    for (int k0 = 0; k0 < k1; k0 += BK) {
      slice = !slice;
      local ACC *sa = slices_a + slice * (BK * BM), *sb = slices_b + slice * (BK * BN);
% for i in range(a_loads):
      sa[tid + ${i} * ITEMS] = na${i};
% endfor
% for i in range(b_loads):
      sb[(K_(${i})) * BN + tid % BN] = nb${i};
% endfor
      barrier(CLK_LOCAL_MEM_FENCE);
      NEXT(k0 + BK)
      if (k0 + BK <= k1) {
        __attribute__((opencl_unroll_hint(BK)))
        for (int kk = 0; kk < BK; ++kk) {${step("kk")}        }
      } else
        for (int kk = 0; kk < k1 - k0; ++kk) {${step("kk")}        }
    }
    if (block % IMAGE == 0) {
${each("$@ = acc@;")}    } else {
${each("$@ += acc@;")}    }
${each("acc@ = 0;")}
% if weights:
    if (block < block0 + IMAGE) {
${each("total@ = own@;")}    } else if ((block + 1) % IMAGE == 0) {
${each("total@ += own@;")}    }
% endif
  }
% for (i, j), r, s in triples(quads, range(4), range(4)):
  {
    const int m = m0 + ${i} * (BM * 4 / TM) + ty * 4 + ${r}, column = n0 + ${j} * (BN * 4 / TN) + tx * 4 + ${s};
    if (m < N && column < COLUMNS) {
#if SPLIT
      out[((long)(get_group_id(2) % SPLITS) * G + g) * N * COLUMNS + (long)m * COLUMNS + column] = total${i}_${j}_${r}.s${s};
#else
      put(OUT_ARGS, total${i}_${j}_${r}.s${s}, target_at(g, m, column), g * N + m);
#endif
    }
  }
% endfor
}
% if weights:

// The images' sums in order.
kernel void reduce(global const ACC *restrict parts, OUT_PARAMS) {
  const int column = get_global_id(0), m = get_global_id(1) % N, g = get_global_id(1) / N;
  const long from = ((long)g * N + m) * COLUMNS + column;
  ACC total = parts[from];
  for (int image = 1; image < IMAGES; ++image) total += parts[image * ((long)G * N * COLUMNS) + from];
  put(OUT_ARGS, total, target_at(g, m, column), 0);
}
% endif
<%! from itertools import product as triples %>
