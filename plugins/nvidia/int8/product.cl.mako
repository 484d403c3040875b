## y[m, n] = finished(sum over k of A[m, k] B[n, k] - x_zero sum over k of B[n, k]): integers on tensor cores.
##
## m = place, n = channel of a group, k = tap after tap, source channels innermost: x in its own layout, channels last, and the
## rows of w, which ``pack.cl`` has filled up. Where a tap is outside of x the zero point stands, so that what x_zero
## takes from a sum is the same everywhere.
##
## All work items copy slices of bk bytes into local memory, chunks of 16 bytes swizzled so that neither copies nor reads
## meet in a bank; as many are in flight as there are stages. Sums become y's elements in registers and leave from there.
##
## bm, bn   tile of a work group
## unit     bytes of x that are copied at once
##
## Source: NVIDIA, PTX ISA: mma.m16n8k32, wgmma.m64nNk32, fragments of 8-bit integers, swizzling modes.
<%
t, p = tiling.tile, tiling.problem
hopper = t.engine == "wgmma"
unit, step = tiling.unit, tiling.rows_at_once
three = p.id > 1 or p.od > 1 or p.kd > 1
whole = tiling.k % t.bk == 0
always = tiling.inside and whole
swizzle = "(row / 2 % 4)" if t.bk == 64 else "(row % 8)"
turn = "(lane / 2 % 4)" if t.bk == 64 else "(lane % 8)"
%>\
<%namespace name="results" file="results.cl.mako"/>\
${results.macros()}\
#define LBO 16
#define SBO ${8 * t.bk}
#define B_LBO LBO
#define B_SBO SBO
<%def name="piece(slice, at, number)">\
      {
        const int k = ${slice} * ${t.bk} + chunk * 16 + ${number * unit};
% if tiling.taps == 1:
        const int from = k;
% else:
        const int tap = k / ${tiling.c}, kw = tap % KW * DW, kh = tap / KW % KH * DH, kd = tap / (KW * KH) * DD;
        const int from = ((kd * IH + kh) * IW + kw) * IC + k % ${tiling.c};
% endif
% for i in range(t.bm // step):
        {
<% to = f"{at} + to + {i * step * t.bk}" + (f" + {number * unit}" if number else "") %>\
% if always:
          copy${unit}(memory, base, ${to}, x + (pixel${i} + from), 1);
% else:
          const int there = ${" & ".join(
            ([] if whole else [f"k < {tiling.k}"])
            + ([] if tiling.inside else [f"(uint)(row{i} + {'kh' if tiling.taps > 1 else 0}) < IH", f"(uint)(column{i} + {'kw' if tiling.taps > 1 else 0}) < IW"])
            + ([f"(uint)(slab{i} + {'kd' if tiling.taps > 1 else 0}) < ID"] if three and not tiling.inside else []))};
          if (there) copy${unit}(memory, base, ${to}, x + (pixel${i} + from), 1);
          else *(local ${ {16: "uint4", 8: "uint2", 4: "uint"}[unit]} *)(memory + ${to}) = ${ {16: "(uint4)(zeros, zeros, zeros, zeros)", 8: "(uint2)(zeros, zeros)", 4: "zeros"}[unit]};
% endif
        }
% endfor
      }
</%def>\
<%def name="copies(slice, at)">\
% for number in range(16 // unit):
${piece(slice, at, number)}\
% endfor
% for i in range(t.bn // step):
      copy16(memory, base, ${at} + to + ${tiling.a_bytes + i * step * t.bk}, w + (weights + ${i * step * tiling.row_bytes} + ${slice} * ${t.bk}), 1);
% endfor
</%def>\
kernel __attribute__((reqd_work_group_size(${t.items}, 1, 1)))
void product(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS) {
  local uint4 area[${tiling.local_bytes // 16}] __attribute__((aligned(1024)));
  SCRATCH(${t.items});
  local uchar *memory = (local uchar *)area;
  local uint *offsets = (local uint *)(memory + ${tiling.numbers_at});
  local float *multipliers = (local float *)(offsets + ${t.bn});
  const uint base = LOCAL_BASE(memory);
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int tile = get_group_id(0);
  const int n0 = tile % ${tiling.n_tiles} * ${t.bn}, m0 = tile / ${tiling.n_tiles} % ${tiling.m_tiles} * ${t.bm}, group = tile / ${tiling.n_tiles * tiling.m_tiles};
  w += w_at;
  // --- what this work item copies: a chunk of every ${step}th row
  const int chunk = tid % ${tiling.chunks}, row = tid / ${tiling.chunks};
  const int to = row * ${t.bk} + (chunk ^ ${swizzle}) * 16;
  const int weights = (group * ${tiling.rows} + n0 + row) * ${tiling.row_bytes} + chunk * 16;
% if not always:
  const uint zeros = (uchar)X_ZERO(table) * 0x01010101u;
% endif
% for i in range(t.bm // step):
  const int place${i} = min(m0 + row + ${i * step}, ${tiling.places - 1});
  const int column${i} = place${i} % OW * SW - PW, row${i} = place${i} / OW % OH * SH - PH;
% if three:
  const int slab${i} = place${i} / (OW * OH) % OD * SD - PD;
  const int pixel${i} = (((place${i} / (OW * OH * OD) * ID + slab${i}) * IH + row${i}) * IW + column${i}) * IC + group * ${tiling.c};
% else:
  const int pixel${i} = ((place${i} / (OW * OH) * IH + row${i}) * IW + column${i}) * IC + group * ${tiling.c};
% endif
% endfor
  // --- what this warp multiplies
% if hopper:
  const int m_warp = warp * 16, n_warp = 0;
  const uint a_from = warp / 4 * ${64 * t.bk};
% else:
  const int m_warp = warp / ${t.wn} * ${t.bm // t.wm}, n_warp = warp % ${t.wn} * ${t.bn // t.wn};
  const uint a_row = (m_warp + lane % 16) * ${t.bk}, b_row = ${tiling.a_bytes} + (n_warp + lane / 16 * 8 + lane % 8) * ${t.bk};
% endif
  ACC sum[${t.frag_m * t.frag_n * 4}]${f", total[{t.frag_m * t.frag_n * 4}]" if tiling.promotes else ""};
#pragma unroll
  for (int i = 0; i < ${t.frag_m * t.frag_n * 4}; ++i) sum[i] = 0;
${results.zeroed()}\
% for s in range(t.ahead):
% if s < tiling.slices:
  {
${copies(s, s * tiling.stage_bytes)}\
  }
% endif
  copies_commit();
% endfor
  {
    global const int *sums_of_w = (global const int *)(w + ${tiling.packed_rows * tiling.row_bytes});
${results.numbers()}\
${results.prefetch()}\
  }
${results.words()}\
  uint at = 0, next = ${t.ahead * tiling.stage_bytes};
  for (int slice = 0; slice < ${tiling.slices}; ++slice) {
    COPIES_WAIT(${t.ahead - 1});
% if hopper:
    VISIBLE_TO_WGMMA();
% endif
    barrier(CLK_LOCAL_MEM_FENCE);
% if hopper:
    WGMMA_BEGIN();
% for k in range(t.bk // 32):
    WGMMA(sum, at + a_from + ${32 * k}, at + ${tiling.a_bytes + 32 * k}, ${int(k > 0 or not tiling.float8)});
% endfor
    WGMMA_COMMIT();
% endif
    if (slice + ${t.ahead} < ${tiling.slices}) {
${copies(f"(slice + {t.ahead})", "next")}\
    }
    copies_commit();
% if hopper:
    ${"wgmma_finish(sum)" if tiling.float8 else "WGMMA_WAIT(1)"};
% else:
% if tiling.float8:
#pragma unroll
    for (int i = 0; i < ${t.frag_m * t.frag_n * 4}; ++i) sum[i] = 0;
% endif
% for k in range(t.bk // 32):
    {
      uint fa[${t.frag_m}][4], fb[${t.frag_n // 2}][4];
% for i in range(t.frag_m):
      LDMATRIX(fa[${i}], at + a_row + ${i * 16 * t.bk} + ((${2 * k} + lane / 16 ^ ${turn}) << 4));
% endfor
% for j in range(t.frag_n // 2):
      LDMATRIX(fb[${j}], at + b_row + ${j * 16 * t.bk} + ((${2 * k} + lane / 8 % 2 ^ ${turn}) << 4));
% endfor
% for i in range(t.frag_m):
% for j in range(t.frag_n):
      MMA(sum + ${(i * t.frag_n + j) * 4}, fa[${i}], fb[${j // 2}] + ${j % 2 * 2});
% endfor
% endfor
    }
% endfor
% endif
${results.promoted(0)}\
    at = at == ${(t.stages - 1) * tiling.stage_bytes} ? 0 : at + ${tiling.stage_bytes};
    next = next == ${(t.stages - 1) * tiling.stage_bytes} ? 0 : next + ${tiling.stage_bytes};
  }
% if hopper:
  wgmma_finish(sum);
% endif
  {
${results.leave()}\
  }
}
