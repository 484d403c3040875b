## Forward and data gradient: chunks of S strips are transformed to V, multiplied with the transformed weights to M, and
## transformed back; in one kernel whose V and M stay in the second-level cache (fused), in three over larger chunks
## (apart), or V first and the remaining steps by blocks of target channels (joined).
##
## V[e][tile][VT], M[e][tile][MT], U[g][e][block][c][NVL]: VE, ME, UE from e to e, rows of tiles rounded up to MR
## joined: V[part][e][tile][VT] of VT channels, VP from part to part; M and U, which is of VT channels and one block, are a
##           work item's own: SLOT elements each, from SLOT_M on, U from SLOT_U on within
## S, XS     strips of a chunk, tiles of a strip; STRIPS of all images
## PASS      blocks of NVL target channels at a time; NB of all
## ITEMS     work items of the one kernel, each with a slot of SLOT elements, M from SLOT_M on
## E, C, N, G  products, channels per group, groups

% if form != "joined":
<%
part = min(near, c)
parts = -(-part * nvl // (kb * fetched * line)) if fetched else 0  # runs that ask for the next part's lines
def ahead(k): return f", packed + (run < {parts} ? {k} + run * {kb * fetched * line} : 0)" if fetched else ""
%>\
// Rows 0 to rows - 1 of a block of a product. A part of the packed weights stays in the first-level cache over all rows,
// of which the first prefetch the next part; blocks are contiguous.
__attribute__((noinline))
void multiply_block(global const ACC *restrict v, global const ACC *restrict packed, global ACC *restrict m, int rows) {
% if c > kb:
  ONCE for (int k0 = 0; k0 < C; k0 += ${near})
    ONCE for (int row = 0, run = 0; row < rows; row += MR)
      ONCE for (int k = k0; k < min(k0 + ${near}, C); k += ${kb}, ++run)
        multiply(v + row * VT + k, packed + k * NVL, m + (long)row * MT, MT, ${f"min({kb}, C - k)" if c % kb else kb}, k == 0${ahead(f"(k0 + {near}) * NVL")});
% else:
  ONCE for (int row = 0, run = 0; row < rows; row += MR, ++run)
    multiply(v + row * VT, packed, m + (long)row * MT, MT, C${ahead("C * NVL")});
% endif
}
% endif

% if form == "fused":
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace, OUT_PARAMS) {
  local ACC copy[LOCAL] __attribute__((aligned(64)));
  const int item = get_global_id(0);
  global ACC *v = workspace + item * SLOT, *m = v + SLOT_M;
  const int jobs = G * CHUNKS, last = (int)((long)(item + 1) * jobs / ITEMS);
  packed += packed_off;
  ONCE for (int job = (int)((long)item * jobs / ITEMS); job < last; ++job) {
    const int g = job / CHUNKS, strip = job % CHUNKS * S, strips = min(S, STRIPS - strip);
    ONCE for (int s = 0; s < strips; ++s)
      ONCE for (int c = 0; c < C; c += LANES) spread_x(v + s * (XS * VT) + c, VE, VT, copy, x, strip + s, g, c);
    ONCE for (int block = 0; block < NB; block += PASS) {
      const int blocks = min(PASS, NB - block);
      ONCE for (int e = 0; e < E; ++e)
        ONCE for (int b = 0; b < blocks; ++b)
          multiply_block(v + e * VE, packed + (g * E + e) * UE + (block + b) * (C * NVL), m + e * ME + b * NVL, strips * XS);
      ONCE for (int s = 0; s < strips; ++s)
        ONCE for (int n = 0; n < blocks * NVL && block * NVL + n < N; n += LANES)
          gather(OUT_ARGS, m + s * (XS * MT) + n, ME, MT, copy, strip + s, g, block * NVL + n);
    }
  }
}
% else:
// First strip and group of a chunk are arguments.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void spread(global const REAL *restrict x, global ACC *workspace, int strip, int g) {
  local ACC copy[LOCAL] __attribute__((aligned(64)));
  const int s = get_global_id(0), c0 = get_global_id(1) * SPREAD_C;
  ONCE for (int c = c0; c < min(c0 + SPREAD_C, C); c += LANES)
% if form == "joined":
    spread_x(workspace + c / VT * VP + s * (XS * VT) + c % VT, VE, VT, copy, x, strip + s, g, c);
% else:
    spread_x(workspace + s * (XS * VT) + c, VE, VT, copy, x, strip + s, g, c);
% endif
}

% if form == "joined":
// Blocks of target channels: their weights are transformed VT source channels at a time and used while a cache holds
// them; the next ones, perhaps of the next block, are prefetched meanwhile.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void products(global const REAL *restrict w, global ACC *workspace, OUT_PARAMS, int strip, int g, int strips) {
  local ACC copy[KEPT] __attribute__((aligned(64)));
  const int item = get_global_id(0), last = (int)((long)(item + 1) * NB / ITEMS);
  global ACC *m = workspace + SLOT_M + item * SLOT, *u = m + SLOT_U;
  ONCE for (int b = (int)((long)item * NB / ITEMS); b < last; ++b) {
    global const ACC *v = workspace;
    ONCE for (int c = 0; c < C; c += VT, v += VP) {
      const int count = min(VT, C - c), on = c + VT < C, next = on ? c + VT : 0;
      ONCE for (int n = 0; n < NVL; n += LANES) transform_weights(u + n, UE, copy, w, g, b * NVL + n, c, c + count);
      ONCE for (int e = 0; e < E; ++e) {
        prefetch_weights(w, g, (b + !on) * NVL, next, min(VT, C - next), e);
        ONCE for (int row = 0; row < strips * XS; row += MR)
          multiply(v + e * VE + row * VT, u + e * UE, m + e * ME + row * NVL, NVL, count${', c == 0' if adds else ''});
      }
    }
    ONCE for (int s = 0; s < strips; ++s)
      ONCE for (int n = 0; n < min(NVL, N - b * NVL); n += LANES)
        gather(OUT_ARGS, m + s * (XS * NVL) + n, ME, NVL, copy, strip + s, g, b * NVL + n);
  }
}
% else:
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void products(global const ACC *restrict packed, long packed_off, global ACC *workspace, int rows, int block, int blocks) {
  const int e = get_global_id(1), parts = get_global_size(0), part = get_global_id(0);
  packed += packed_off + e * UE;
  ONCE for (int b = part * blocks / parts; b < (part + 1) * blocks / parts; ++b)
    multiply_block(workspace + e * VE, packed + b * (C * NVL), workspace + SLOT_M + e * ME + (block + b) * NVL, rows);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void collect(global ACC *workspace, OUT_PARAMS, int strip, int g) {
  local ACC copy[LOCAL] __attribute__((aligned(64)));
  const int s = get_global_id(0), n0 = get_global_id(1) * SPREAD_C;
  ONCE for (int n = n0; n < min(n0 + SPREAD_C, N); n += LANES)
    gather(OUT_ARGS, workspace + SLOT_M + s * (XS * MT) + n, ME, MT, copy, strip + s, g, n);
}
% endif
% endif
