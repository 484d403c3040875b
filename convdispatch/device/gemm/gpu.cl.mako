## C[m, n] = sum over k of A[m, k] B[k, n]: a work group computes BM x BN of C from BK-deep slices in local memory.
//
// BM, BN, BK  tile of a work group, and the depth of its slices of A and B
// TM, TN      tile of a work item, in quads of 4 that are 4 * BM / TM rows and 4 * BN / TN columns apart, so that
//             neighbouring work items read neighbouring 16 bytes of local memory
// LN          work items of a warp (32) along n; 32 / LN along m
// STAGES      2: the next slice is copied to local memory while this one is multiplied; 1: no overlap, half the memory
// KS          length along k of one part when the sum is split
<%
rows, columns = bm // tm, bn // tn
items = rows * columns
warp_n = min(ln, columns)
warp_m = max(1, min(32 // warp_n, rows))
quads_m, quads_n = tm // 4, tn // 4
pitch = {"a": bm + pad["a"], "b": bn + pad["b"]}
%>\
% if wide and dtype in ("float32", "float64"):
#define LOAD4(p) (*(global const ACC4 *)(p))
% else:
#define LOAD4 LOADV
% endif
<%def name="position(x)"><% o = x.letter %>\
  // The work item's first vector in a slice of ${o.upper()}; its other vectors are at literal offsets from it.
  const int ${o}_fast = tid % ${x.run} * ${x.vec}, ${o}_slow = tid / ${x.run};
  const int ${o}_k = ${o}_${"fast" if x.k_unit else "slow"}, ${o}_i = ${o}_${"slow" if x.k_unit else "fast"};
% if x.packed:
  global const ACC *restrict p${o} = ${o} + ${o.upper()}_PACKED(z) * ${x.panels * x.tile * k}L
      + (long)${x.group} * ${x.tile * k}L + (long)(begin + ${o}_k) * ${x.tile} + ${o}_i;
% else:
% if x.offsets:
% for s in range(x.slots):
  const long ${o}_at${s} = ${x.i_text(f"min({x.origin} + {o}_i + {x.place(s)[1]}, {x.size - (1 if x.k_unit else x.vec)})")};
% endfor
  global const REAL *restrict p${o} = ${o} + ${o.upper()}_BATCH(z)${"" if x.k_split else " + " + x.k_text(f"begin + {o}_k")};
% else:
  global const REAL *restrict p${o} = ${o} + ${o.upper()}_BATCH(z)
      + ${x.i_text(f"min({x.origin} + {o}_i, {x.size - (1 if x.k_unit else x.vec)})" if x.ragged else f"{x.origin} + {o}_i")}${"" if x.k_split else " + " + x.k_text(f"begin + {o}_k")};
% endif
% endif
% for s in range(x.slots):
  ${"ACC4" if x.vec == 4 else "ACC"} ${o}_next${s};
% endfor
</%def>
<%def name="fetch(x, kt)"><% o = x.letter %>\
% for s in range(x.slots):
<%
k_step, i_step = x.place(s)
if x.packed:
    at = f"{k_step * x.tile + i_step}"
else:
    at = f"{o}_at{s}" if x.offsets else f"{i_step * x.i_stride}"
    at += f" + {x.k_text(f'{kt} + {o}_k + {k_step}')}" if x.k_split else f" + {k_step * x.k_stride}"
guards = [f"{kt} + {o}_k + {k_step} < end"] if x.k_guard else []
if x.total % items: guards.append(f"tid + {s * items} < {x.total}")
value = f"LOAD4(p{o} + {at})" if x.vec == 4 else f"p{o}[{at}]" if x.packed else f"LOAD(p{o}, {at})"
%>\
      ${o}_next${s} = ${f"({' && '.join(guards)}) ? {value} : ({'ACC4' if x.vec == 4 else 'ACC'})(0)" if guards else value};
% endfor
% if x.packed or not x.k_split:
      p${o} += ${bk * (x.tile if x.packed else x.k_stride)};
% endif
</%def>
<%def name="keep(x, stage)"><% o = x.letter %>\
% for s in range(x.slots):
<%
k_step, i_step = x.place(s)
to = f"s{o} + {stage} + ({o}_k + {k_step}) * {pitch[o]} + {o}_i + {i_step}"
%>\
      ${f"if (tid + {s * items} < {x.total}) " if x.total % items else ""}{
% if x.vec == 1:
        *(${to}) = ${o}_next${s};
% elif x.k_unit:
% for q in range(4):
        *(${to} + ${q * pitch[o]}) = ${o}_next${s}.s${q};
% endfor
% else:
        *(local ACC4 *)(${to}) = ${o}_next${s};
% endif
      }
% endfor
</%def>
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void gemm(global const ${operands[0].stored} *restrict a, long a_off, global const ${operands[1].stored} *restrict b, long b_off,
          OUT_KERNEL_PARAMS) {
  local ACC sa[${stages * bk * pitch["a"]}] __attribute__((aligned(${4 * accsize})));
  local ACC sb[${stages * bk * pitch["b"]}] __attribute__((aligned(${4 * accsize})));
  const int tid = get_local_id(0), warp = tid / ${warp_m * warp_n}, lane = tid % ${warp_m * warp_n};
  const int tx = warp % ${columns // warp_n} * ${warp_n} + lane % ${warp_n}, ty = warp / ${columns // warp_n} * ${warp_m} + lane / ${warp_n};
  const int n0 = get_group_id(0) * ${bn}, m0 = get_group_id(1) * ${bm};
  const int part = get_group_id(2) % SPLIT, z = get_group_id(2) / SPLIT;
  const int begin = part * KS, end = min(begin + KS, K);
  a += a_off;
  b += b_off;
% for x in operands:
${position(x)}\
% endfor
% for q, r in pairs(range(quads_m), range(4)):
  ACC4 ${", ".join(f"c{q}_{r}_{p} = (ACC4)(0)" for p in range(quads_n))};
% endfor
% for x in operands:
${fetch(x, "begin")}\
% endfor
  int stage = 0;
% for x in operands:
${keep(x, "0")}\
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int kt = begin; kt < end; kt += ${bk}) {
    const int next = kt + ${bk};
    if (next < end) {
% for x in operands:
${fetch(x, "next")}\
% endfor
    }
    local const ACC *la = sa + stage * ${bk * pitch["a"]} + ty * 4, *lb = sb + stage * ${bk * pitch["b"]} + tx * 4;
#ifdef __AMDGCN__ // AMD's compiler reads a fully unrolled slice into registers first, and spills 500 bytes a work item.
#pragma unroll 4
#else
#pragma unroll
#endif
    for (int k = 0; k < ${bk}; ++k) {
% for q in range(quads_m):
      const ACC4 a${q} = *(local const ACC4 *)(la + k * ${pitch["a"]} + ${q * (bm // quads_m)});
% endfor
% for p in range(quads_n):
      const ACC4 b${p} = *(local const ACC4 *)(lb + k * ${pitch["b"]} + ${p * (bn // quads_n)});
% endfor
% for q in range(quads_m):
% for r, p in pairs(range(4), range(quads_n)):
      c${q}_${r}_${p} = a${q}.s${r} * b${p} + c${q}_${r}_${p};
% endfor
% endfor
    }
% if stages == 2:
    stage ^= 1;
    if (next < end) {
% for x in operands:
${keep(x, f"stage * {bk * pitch[x.letter]}")}\
% endfor
    }
    barrier(CLK_LOCAL_MEM_FENCE);
% else:
    barrier(CLK_LOCAL_MEM_FENCE);
    if (next < end) {
% for x in operands:
${keep(x, "0")}\
% endfor
    }
    barrier(CLK_LOCAL_MEM_FENCE);
% endif
  }
  OUT_POINTERS(z, part)
% for q, r in pairs(range(quads_m), range(4)):
  {
    const int row = m0 + ty * 4 + ${q * (bm // quads_m) + r};
% if m % bm:
    if (row < M) {
% else:
    {
% endif
% for p in range(quads_n):
      {
        const int column = n0 + tx * 4 + ${p * (bn // quads_n)};
% if n % bn:
        if (column + 4 <= N) put_vector(OUT_ARGS, c${q}_${r}_${p}, row, column, FLAGS | LAST);
        else put_lanes(OUT_ARGS, c${q}_${r}_${p}, row, column, 0, N - column, FLAGS | LAST);
% else:
        put_vector(OUT_ARGS, c${q}_${r}_${p}, row, column, FLAGS | LAST);
% endif
      }
% endfor
    }
  }
% endfor
}
<%! from itertools import product as pairs %>
