## Weights' gradient: chunks of S strips of x and dy are transformed to V and D; every product e of them is a matrix
## product over tiles, added to M; at the end M is transformed back to dw. One chunk's products are transformed back as
## soon as CR source channels of a block have all of them (joined).
##
## V[e][part][tile][VT] of CR channels of x, D[e][block][tile][NVL] of dy, M[g][e][block][c][NVL] with c rounded up to MR (CM rows)
## VE, DE    from e to e; VB, DB from part to part, from block to block; D_AT, M_AT where D and M begin
## XS, TB    tiles of a strip, tiles of one running sum
## CR        source channels of a part: of a job where joined, else all
## PARTS, ITEMS, ME  joined: jobs of a block, work items, elements of a job's M from e to e
## NB, E, C, N, G  blocks of NVL target channels, products, channels per group, groups; SPREAD_C of a work item
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void spread(global const REAL *restrict x, global const REAL *restrict y, global ACC *workspace, int strip, int g) {
  local ACC copy[LOCAL] __attribute__((aligned(64)));
  const int s = get_global_id(0), c0 = get_global_id(1) * SPREAD_C;
  ONCE for (int c = c0; c < min(c0 + SPREAD_C, C); c += LANES)
    spread_x(workspace + c / CR * VB + s * (XS * VT) + c % CR, VE, VT, copy, x, strip + s, g, c);
  ONCE for (int n = c0; n < min(c0 + SPREAD_C, N); n += LANES)
    spread_d(workspace + D_AT + n / NVL * DB + s * (XS * NVL) + n % NVL, DE, NVL, copy, y, strip + s, g, n);
}

// A square of LANES target channels by LANES source channels at a time: what of dw follows in memory, of one target channel
// the taps of LANES source channels (NCHW) or LANES source channels of each tap, is turned into vectors.
// Element e of source channel c, target channels n0 and on, is at m[e * e_step + c * NVL].
<%
taps = tile_h * tile_w
at = f"n * {w_n}L + (c * {w_c}L + t * ({w_t}))"
%>\
__attribute__((noinline))
void put_square(global const ACC *restrict m, long e_step, local ACC *restrict copy, global REAL *restrict w, int g, int n0, int c0) {
  const int channels = min(LANES, C - c0), count = min(LANES, N - n0);
  ONCE for (int c = 0; c < channels; ++c, m += NVL) {
${pass_along_h(program_h, patch_h, tile_h, patch_w, patch_w, "LOADW(m + ({row} + j) * e_step)")}\
    ONCE for (int k = 0; k < ${tile_h}; ++k) {
% for j in range(patch_w):
      const V d${j} = mid[k * ${patch_w} + ${j}];
% endfor
${program_w}\
% for j in range(tile_w):
      STOREL(copy + (${f"(k * {tile_w} + {j}) * LANES + c" if nhwc else f"c * {taps} + k * {tile_w} + {j}"}) * LANES, o${j});
% endfor
    }
  }
  global REAL *to = w + g * ${group}L + n0 * ${w_n}L + c0 * ${w_c}L;
  if (channels == LANES) {
    ONCE for (int square = 0; square < ${taps}; ++square, copy += LANES * LANES) {
      transpose(copy);
      ONCE for (int n = 0; n < count; ++n) {
        global REAL *p = to + n * ${w_n}L + square * ${w_t if nhwc else "LANES"};
        STOREV(p, LOADL(copy + n * LANES)${" + LOADV(p)" if accumulate else ""});
      }
    }
  } else
    ONCE for (int n = 0; n < count; ++n)
      ONCE for (int c = 0; c < channels; ++c)
        ONCE for (int t = 0; t < ${taps}; ++t) {
          const long p = ${at};
          STORE(to, p, copy[(${"t * LANES + c" if nhwc else f"c * {taps} + t"}) * LANES + n]${" + LOAD(to, p)" if accumulate else ""});
        }
}

% if joined:
// M of a job, a block of target channels by CR source channels, stays in the second-level cache.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void products(global ACC *workspace, global REAL *w, int g, int rows) {
  local ACC copy[${taps} * LANES * LANES] __attribute__((aligned(64)));
  const int item = get_global_id(0), jobs = NB * PARTS, last = (int)((long)(item + 1) * jobs / ITEMS);
  global ACC *m = workspace + M_AT + item * (E * ME);
  ONCE for (int job = (int)((long)item * jobs / ITEMS); job < last; ++job) {
    const int b = job / PARTS, c0 = job % PARTS * CR, channels = min(CR, C - c0);
    ONCE for (int e = 0; e < E; ++e) {
      global const ACC *v = workspace + e * VE + job % PARTS * VB, *d = workspace + D_AT + e * DE + b * DB;
      ONCE for (int t = 0; t < rows; t += TB)
        ONCE for (int c = 0; c < channels; c += MR)
          multiply(v + t * VT + c, d + t * NVL, m + e * ME + c * NVL, NVL, min(TB, rows - t), t == 0);
    }
    ONCE for (int n = 0; n < min(NVL, N - b * NVL); n += LANES)
      ONCE for (int c = 0; c < channels; c += LANES) put_square(m + c * NVL + n, ME, copy, w, g, b * NVL + n, c0 + c);
  }
}
% else:
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void products(global ACC *workspace, int g, int rows, int first) {
  const int e = get_global_id(1), parts = get_global_size(0), part = get_global_id(0);
  ONCE for (int b = part * NB / parts; b < (part + 1) * NB / parts; ++b) {
    global const ACC *d = workspace + D_AT + e * DE + b * DB;
    global ACC *m = workspace + M_AT + (((long)g * E + e) * NB + b) * (CM * NVL);
    ONCE for (int t = 0; t < rows; t += TB)
      ONCE for (int c = 0; c < CM; c += MR)
        multiply(workspace + e * VE + t * VT + c, d + t * NVL, m + c * NVL, NVL, min(TB, rows - t), first && t == 0);
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void collect(global const ACC *workspace, global REAL *w) {
  local ACC copy[${taps} * LANES * LANES] __attribute__((aligned(64)));
  const int block = get_global_id(1) % NB, g = get_global_id(1) / NB, c0 = get_global_id(0) * LANES;
  global const ACC *m = workspace + M_AT + (((long)g * E * NB + block) * CM + c0) * NVL;
  ONCE for (int n = 0; n < min(NVL, N - block * NVL); n += LANES)
    put_square(m + n, (long)NB * CM * NVL, copy, w, g, block * NVL + n, c0);
}
% endif
