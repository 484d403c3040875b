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
## The template sees a ``Form`` (``solver.py``): a name in capitals is a number of the geometry (``numbers.py``), which is
## a literal or an argument. ``places``, ``fetch``, ``keep`` and ``results`` are parts of this text.
typedef ACC4 __attribute__((aligned(${4 * f.accsize}))) quad;
#define INDEX ${f.index}
% if f.phased:
${phases}\
% endif
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const ${"ACC" if f.data else "REAL"} *restrict a, global const REAL *restrict b, OUT_PARAMS${", global const ACC *norm" if f.norm else ""}${", global ACC *parts" if f.sums else ""} NUMBERS) {
% if f.sums:
  // After the last slice the same memory holds the sums of the work items' columns.
  local ACC shared[${f.shared}] __attribute__((aligned(${4 * f.accsize})));
  local ACC *sa = shared, *sb = shared + ${t.stages * bk * a_pitch};
% else:
  local ACC sa[${t.stages * bk * a_pitch}] __attribute__((aligned(${4 * f.accsize})));
  local ACC sb[${t.stages * bk * b.pitch}] __attribute__((aligned(${4 * f.accsize})));
% endif
  const int tid = get_local_id(0), warp = tid / ${warp_m * warp_n}, lane = tid % ${warp_m * warp_n};
  const int tx = warp % ${columns // warp_n} * ${warp_n} + lane % ${warp_n}, ty = warp / ${columns // warp_n} * ${warp_m} + lane / ${warp_n};
% if f.partial:
  out += PARTS_AT;
% endif
  int rest = get_group_id(0), next = DIVIDED(rest, M_TILES);
  const int m_tile = rest - next * M_TILES;
  rest = next, next = DIVIDED(rest, N_TILES);
  const int n_tile = rest - next * N_TILES;
% if f.partial:
  rest = next, next = DIVIDED(rest, SPLIT);
  const int part = rest - next * SPLIT;
% endif
% if f.phased:
  rest = next, next = DIVIDED(rest, PHASES);
  const int number = rest - next * PHASES;
% endif
  const int group = next, m0 = m_tile * ${bm};
% if f.phased:
  // The number of a phase counts along w, then h, then d.
  const int row_of_phases = DIVIDED(number, PHASES_X), plane_of_phases = DIVIDED(row_of_phases, PHASES_Y);
  const axis_phase phase_z = PHASE_Z(plane_of_phases), phase_y = PHASE_Y(row_of_phases - plane_of_phases * PHASES_Y),
                   phase_x = PHASE_X(number - row_of_phases * PHASES_X);
% for field in ("first", "count", "taps", "origin"):
  const int ${", ".join(f"{field}_{axis} = phase_{axis}.{field}" for axis in "zyx")};
% endfor
  const int before = CHUNKS * (taps_before(first_z, STRIDE_Z, DILATION_Z, PAD_Z, KERNEL_Z) * PHASE_TAPS_Y * PHASE_TAPS_X
      + taps_z * (taps_before(first_y, STRIDE_Y, DILATION_Y, PAD_Y, KERNEL_Y) * PHASE_TAPS_X
      + taps_y * taps_before(first_x, STRIDE_X, DILATION_X, PAD_X, KERNEL_X)));
  const int slices = CHUNKS * taps_z * taps_y * taps_x, places = count_z * count_y * count_x, n_end = places * IMAGES;
% else:
  const int slices = SLICES, n_end = N_END;
% endif
% if f.data:
  const int n0 = n_tile * ${bn};
% endif
% if f.partial:
  // The parts share the slices; the first of them have one more where they do not share evenly.
  const int share = DIVIDED(slices, SPLIT), more = slices - share * SPLIT;
  int slice = part * share + min(part, more);
<% last = "slice + share + (part < more)" %>\
% else:
  int slice = 0;
<% last = "slices" %>\
% endif
% if f.phased:
  // Smaller phases need fewer groups. Those left over add nothing and write nothing; they do not return, because PoCL 3
  // loses the writes' guards when a group returns before a barrier.
  const int last = n0 < n_end ? ${last} : slice;
% else:
  const int last = ${last};
% endif
${part("places.cl.mako")}\
% if f.data:
% for s in range(a_slots):
  ACC4 a_next${s};
% endfor
% else:
% for x, k in pairs(range(f.a.x_slots), range(f.a.k_slots)):
  ${f.a.type} a_next${x}_${k};
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
% if f.data:
## This also runs after the last slice: Intel's compiler for GPUs crashes if a branch of a loop changes the pointer.
    a_from += ${bk * bm};
% endif
    if (slice < last) {
${part("fetch.cl.mako")}\
    }
    {
      local const ACC *la = sa + stage * ${bk * a_pitch} + ty * 4, *lb = sb + stage * ${bk * b.pitch} + tx * 4;
#ifdef __AMDGCN__ // AMD's compiler reads a fully unrolled slice into registers first, and spills 500 bytes a work item.
#pragma unroll 4
#else
#pragma unroll
#endif
      for (int k = 0; k < ${bk}; ++k) {
% for q in range(quads_m):
        const ACC4 a${q} = *(local const quad *)(la + k * ${a_pitch} + ${q * (bm // quads_m)});
% endfor
% for n in range(quads_n):
        const ACC4 b${n} = *(local const quad *)(lb + k * ${b.pitch} + ${n * (bn // quads_n)});
% endfor
% for m, n in t.steps:
        c${m // 4}_${m % 4}_${n // 4}.s${n % 4} = a${m // 4}.s${m % 4} * b${n // 4}.s${n % 4} + c${m // 4}_${m % 4}_${n // 4}.s${n % 4};
% endfor
      }
    }
% if t.stages == 2:
    stage ^= 1;
    if (slice < last) {
${part("keep.cl.mako", at=(f"stage * {bk * a_pitch}", f"stage * {bk * b.pitch}"))}\
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
% if f.sums:
${part("sums.cl.mako")}\
% endif
}
<%! from itertools import product as pairs %>
