## c[f, m, n] (+)= sum over k of a[f, k, m] b[f, k, n], complex, a conjugated or not: one matrix product a frequency.
//
// Elements are (re, im) pairs, side by side. A work group computes BM x BN of one frequency from slices of BK k's in local
// memory; a work item computes TM x TN, in units of 2 that are 2 BM / TM rows and 2 BN / TN columns apart, so that
// neighbours read neighbouring 16 bytes. A complex product takes four real ones.
<%
rows, columns = bm // tm, bn // tn
items = rows * columns
warp_n = min(8, columns)
warp_m = max(1, min(32 // warp_n, rows))
sides = [("a", bm, m, m_pitch, "m0"), ("b", bn, n, n_pitch, "n0")]
minus, plus = ("", "-") if conjugate else ("-", "")
n_tiles, m_tiles = -(-n // bn), -(-m // bm)
def size(tile): return bk * tile // 2
%>\
// The compiler fuses no products of its own choice, which would depend on the sizes.
#pragma OPENCL FP_CONTRACT OFF
#define PAIR_(T) T##2
#define PAIR_OF(T) PAIR_(T)
#define PAIR PAIR_OF(ACC)
#define QUAD_(T) T##4
#define QUAD_OF(T) QUAD_(T)
#define QUAD QUAD_OF(ACC)
<%def name="fetch()">\
% for o, tile, _, pitch, first in sides:
<% total = bk * tile // 2 %>\
% for s in range(-(-total // items)):
<%
guards = []
if total % items and (s + 1) * items > total: guards.append(f"tid + {s * items} < {total}")
if k % bk: guards.append(f"kt + (tid + {s * items}) / {tile // 2} < {k}")
if pitch % tile: guards.append(f"{first} + (tid + {s * items}) % {tile // 2} * 2 < {pitch}")
at = f"(kt + (tid + {s * items}) / {tile // 2}) * {pitch // 2} + (tid + {s * items}) % {tile // 2}"
%>\
      ${o}_next${s} = ${f"{' && '.join(guards)} ? p{o}[{at}] : (QUAD)(0)" if guards else f"p{o}[{at}]"};
% endfor
% endfor
</%def>\
<%def name="keep()">\
% for o, tile, *_ in sides:
<% total = bk * tile // 2 %>\
% for s in range(-(-total // items)):
      ${f"if (tid + {s * items} < {total}) " if total % items and (s + 1) * items > total else ""}{
        s${o}[stage * ${total} + tid + ${s * items}] = ${o}_next${s};
      }
% endfor
% endfor
</%def>\
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void product(global const QUAD *restrict a, long a_off, global const QUAD *restrict b, long b_off,
             global QUAD *restrict c, long c_off) {
% for o, tile, *_ in sides:
  local QUAD s${o}[${2 * size(tile)}];
% endfor
  const int tid = get_local_id(0), warp = tid / ${warp_m * warp_n}, lane = tid % ${warp_m * warp_n};
  const int tx = warp % ${columns // warp_n} * ${warp_n} + lane % ${warp_n}, ty = warp / ${columns // warp_n} * ${warp_m} + lane / ${warp_n};
  const int n0 = get_group_id(0) % ${n_tiles} * ${bn}, m0 = get_group_id(0) / ${n_tiles} % ${m_tiles} * ${bm};
  const long f = get_group_id(0) / ${n_tiles * m_tiles};
  global const QUAD *restrict pa = a + a_off + f * ${k * m_pitch // 2} + m0 / 2;
  global const QUAD *restrict pb = b + b_off + f * ${k * n_pitch // 2} + n0 / 2;
% for q, p in pairs(range(tm), range(tn // 2)):
  QUAD ${f"u{q}_{p} = (QUAD)(0)"};
% endfor
% for o, tile, *_ in sides:
  QUAD ${", ".join(f"{o}_next{s}" for s in range(-(-(bk * tile // 2) // items)))};
% endfor
  int kt = 0, stage = 0;
${fetch()}\
${keep()}\
  barrier(CLK_LOCAL_MEM_FENCE);
  for (;;) {
    kt += ${bk};
    if (kt < ${k}) {
${fetch()}\
    }
    local const QUAD *la = sa + stage * ${size(bm)} + ty, *lb = sb + stage * ${size(bn)} + tx;
#pragma unroll ${unroll}
    for (int k = 0; k < ${bk}; ++k) {
% for q in range(tm // 2):
      const QUAD a${q} = la[k * ${bm // 2} + ${q * rows}];
% endfor
% for p in range(tn // 2):
      const QUAD b${p} = lb[k * ${bn // 2} + ${p * columns}];
% endfor
% for q in range(tm):
% for p in range(tn // 2):
      u${q}_${p} = fma((QUAD)(a${q // 2}.s${q % 2 * 2}), b${p}, u${q}_${p});
% endfor
% for p in range(tn // 2):
      u${q}_${p}.s02 = fma((PAIR)(${minus}a${q // 2}.s${q % 2 * 2 + 1}), b${p}.s13, u${q}_${p}.s02);
      u${q}_${p}.s13 = fma((PAIR)(${plus}a${q // 2}.s${q % 2 * 2 + 1}), b${p}.s02, u${q}_${p}.s13);
% endfor
% endfor
    }
    if (kt >= ${k}) break;
    stage ^= 1;
${keep()}\
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c += c_off + f * ${m * n_pitch // 2} + n0 / 2;
% for q in range(tm):
  {
    const int row = m0 + (ty + ${q // 2 * rows}) * 2 + ${q % 2};
    ${f"if (row < {m})" if m % bm else ""} {
% for p in range(tn // 2):
      ${f"if (n0 + (tx + {p * columns}) * 2 < {n_pitch})" if n_pitch % bn else ""} {
        const long at = row * ${n_pitch // 2}L + tx + ${p * columns};
        const QUAD r = u${q}_${p};
        c[at] = ${"c[at] + r" if accumulate else "r"};
      }
% endfor
    }
  }
% endfor
}
<%! from itertools import product as pairs %>
