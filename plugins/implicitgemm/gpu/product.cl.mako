## C[m, n] = sum over k of A[m, k] B[k, n]: a work group computes BM x BN of C from BK-deep slices in local memory,
## and B (for the weights' gradient A too) is read from the tensor itself, never stored as a matrix.
##
## Data (forward, data gradient): m = output channel, n = (image, pixel), k = (channel, tap); A is packed in slices.
## Weights: m = output channel, n = (tap, channel) or (channel, tap), k = (image, pixel).
##
## BM, BN, BK  tile of a work group, and the depth of its slices
## TM, TN      tile of a work item, in quads of 4 that are 4 * BM / TM rows and 4 * BN / TN columns apart, so that
##             neighbours read neighbouring 16 bytes of local memory
## LN          work items of a warp (32) along n; 32 / LN along m
## ORDER       order of the multiply-adds of a step: rows, parity
## STAGES      2: the next slice goes into local memory while this one is multiplied; 1: half the local memory
## SPLIT       parts of the sum over k, which end in the workspace
##
## Values come from ``text.py``; ``places``, ``fetch``, ``keep`` and ``results`` are parts of this text.
typedef ACC4 __attribute__((aligned(${4 * p.accsize}))) quad;
#define INDEX ${p.index}
#define SPLIT ${p.split}
% if many:
// first, count, taps, origin along d, h, w; slices of A before this phase's, and its slices.
constant int PHASES[${len(geo.phases)}][14] = {
% for number, f in enumerate(geo.phases):
  {${", ".join(map(str, (*f.first, *f.count, *f.taps, *f.origin, p.slices_before[number], p.slices[number])))}},
% endfor
};
% endif
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const ${"ACC" if p.data else "REAL"} *restrict a, global const REAL *restrict b, OUT_PARAMS${", global const ACC *norm" if p.norm else ""}${", global ACC *parts" if p.sums else ""}) {
% if p.sums:
  // After the last slice the same memory holds the sums of the work items' columns.
  local ACC shared[${p.local_size // p.accsize}] __attribute__((aligned(${4 * p.accsize})));
  local ACC *sa = shared, *sb = shared + ${t.stages * bk * p.a_pitch};
% else:
  local ACC sa[${t.stages * bk * p.a_pitch}] __attribute__((aligned(${4 * p.accsize})));
  local ACC sb[${t.stages * bk * b.pitch}] __attribute__((aligned(${4 * p.accsize})));
% endif
  const int tid = get_local_id(0), warp = tid / ${warp_m * warp_n}, lane = tid % ${warp_m * warp_n};
  const int tx = warp % ${columns // warp_n} * ${warp_n} + lane % ${warp_n}, ty = warp / ${columns // warp_n} * ${warp_m} + lane / ${warp_n};
  int rest = get_group_id(0);
  const int m_tile = rest % ${p.m_tiles};
  rest /= ${p.m_tiles};
  const int n_tile = rest % ${p.n_tiles};
  rest /= ${p.n_tiles};
  const int part = rest % SPLIT;
  rest /= SPLIT;
  const int number = rest % ${len(geo.phases)}, group = rest / ${len(geo.phases)};
  const int m0 = m_tile * ${bm};
% if many:
  constant int *row = PHASES[number];
  const int ${", ".join(f"{field}_{names[axis]} = row[{3 * i + axis}]" for i, field in enumerate(("first", "count", "taps", "origin")) for axis in axes)};
  const int before = row[12], slices = row[13];
  const int places = count_z * count_y * count_x, n_end = places * ${geo.images};
% else:
  const int slices = ${p.slices[0]}, n_end = ${p.n};
% endif
% if p.data:
  const int n0 = n_tile * ${bn};
% endif
  // The parts share the slices evenly.
  int slice = ${"0" if p.split == 1 else "(int)((long)slices * part / SPLIT)"};
<% last = "slices" if p.split == 1 else "(int)((long)slices * (part + 1) / SPLIT)" %>\
% if many:
  // Smaller phases need fewer groups. Those left over add nothing and write nothing; they do not return, because PoCL 3
  // loses the writes' guards when a group returns before a barrier.
  const int last = n0 < n_end ? ${last} : slice;
% else:
  const int last = ${last};
% endif
${part("places.cl.mako")}\
% if p.data:
% for s in range(p.a_slots):
  ACC4 a_next${s};
% endfor
% else:
% for x, k in pairs(range(p.a.x_slots), range(p.a.k_slots)):
  ${p.a.type} a_next${x}_${k};
% endfor
% endif
% for x, k in pairs(range(b.x_slots), range(b.k_slots)):
  ${b.type} b_next${x}_${k};
% endfor
% for q, r in pairs(range(quads_m), range(4)):
  ACC4 ${", ".join(f"c{q}_{r}_{n} = (ACC4)(0)" for n in range(quads_n))};
% endfor
  if (slice < last) {
${part("fetch.cl.mako")}\
${part("keep.cl.mako", at=("0", "0"))}\
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int stage = 0;
  for (++slice; slice <= last; ++slice) {
% if p.data:
## This also runs after the last slice: Intel's compiler for GPUs crashes if a branch of a loop changes the pointer.
    a_from += ${bk * bm};
% endif
    if (slice < last) {
${part("fetch.cl.mako")}\
    }
    {
      local const ACC *la = sa + stage * ${bk * p.a_pitch} + ty * 4, *lb = sb + stage * ${bk * b.pitch} + tx * 4;
#pragma unroll
      for (int k = 0; k < ${bk}; ++k) {
% for q in range(quads_m):
        const ACC4 a${q} = *(local const quad *)(la + k * ${p.a_pitch} + ${q * (bm // quads_m)});
% endfor
% for n in range(quads_n):
        const ACC4 b${n} = *(local const quad *)(lb + k * ${b.pitch} + ${n * (bn // quads_n)});
% endfor
% for m, n in p.steps:
        c${m // 4}_${m % 4}_${n // 4}.s${n % 4} = a${m // 4}.s${m % 4} * b${n // 4}.s${n % 4} + c${m // 4}_${m % 4}_${n // 4}.s${n % 4};
% endfor
      }
    }
% if t.stages == 2:
    stage ^= 1;
    if (slice < last) {
${part("keep.cl.mako", at=(f"stage * {bk * p.a_pitch}", f"stage * {bk * b.pitch}"))}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
% else:
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice < last) {
${part("keep.cl.mako", at=("0", "0"))}\
    }
    barrier(CLK_LOCAL_MEM_FENCE);
% endif
  }
${part("results.cl.mako")}\
% if p.sums:
${part("sums.cl.mako")}\
% endif
}
<%! from itertools import product as pairs %>
