## Weights' gradient: chunks of S strips of x and dy are transformed to V and D; every product e of them is a matrix
## product over tiles, added to M; at the end M is transformed back to dw.
##
## V[e][tile][VT] of x, D[e][block][tile][NVL] of dy, M[g][e][block][c][NVL] with c rounded up to MR (CM rows)
## VE, DE    from e to e; DB from block to block; D_AT, M_AT where D and M begin
## XS, TB    tiles of a strip, tiles of one running sum
## NB, E, C, N, G  blocks of NVL target channels, products, channels a group, groups; SPREAD_C of a work item
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void spread(global const REAL *restrict x, global const REAL *restrict y, global ACC *workspace, int strip, int g) {
  local ACC copy[LOCAL] __attribute__((aligned(64)));
  const int s = get_global_id(0), c0 = get_global_id(1) * SPREAD_C;
  ONCE for (int c = c0; c < min(c0 + SPREAD_C, C); c += LANES)
    spread_x(workspace + s * (XS * VT) + c, VE, VT, copy, x, strip + s, g, c);
  ONCE for (int n = c0; n < min(c0 + SPREAD_C, N); n += LANES)
    spread_d(workspace + D_AT + n / NVL * DB + s * (XS * NVL) + n % NVL, DE, NVL, copy, y, strip + s, g, n);
}

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

// dw leaves number by number; bfloat16 is rounded a vector at a time before.
#if BFLOAT16 && ${int(not accumulate)}
#define OUT ushort
#define VOUT WITH_LANES(ushort, LANES, )
#define ROUNDED(v) WITH_LANES(convert_bfloat16_as_ushort, LANES, )(v)
#define PUT(p, i, v) ((p)[i] = (v))
#else
#define OUT ACC
#define VOUT V
#define ROUNDED(v) (v)
#define PUT STORE
#endif
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void collect(global const ACC *workspace, global REAL *w) {
  const int block = get_global_id(1) % NB, g = get_global_id(1) / NB, c0 = get_global_id(0) * ${pack_c};
  ONCE for (int c = c0; c < min(c0 + ${pack_c}, C); ++c)
    ONCE for (int v = 0; v < NVL; v += LANES) {
      global const ACC *m = workspace + M_AT + (((long)g * E * NB + block) * CM + c) * NVL + v;
      const int n0 = block * NVL + v, count = min(LANES, N - n0);
      V mid[${tile_h * patch_w}];
      ONCE for (int j = 0; j < ${patch_w}; ++j) {
% for k in range(patch_h):
        const V d${k} = LOADW(m + ${k * patch_w}L * (NB * CM * NVL) + j * ((long)NB * CM * NVL));
% endfor
${program_h}\
% for k in range(tile_h):
        mid[${k * patch_w} + j] = o${k};
% endfor
      }
      global REAL *to = w + g * ${group}L + n0 * ${w_n}L + c * ${w_c}L;
      ONCE for (int k = 0; k < ${tile_h}; ++k) {
        union { VOUT v; OUT s[LANES]; } out[${tile_w}];
% for j in range(patch_w):
        const V d${j} = mid[k * ${patch_w} + ${j}];
% endfor
${program_w}\
% for j in range(tile_w):
        out[${j}].v = ROUNDED(o${j});
% endfor
        ONCE for (int n = 0; n < count; ++n)
          ONCE for (int j = 0; j < ${tile_w}; ++j) {
            const long p = n * ${w_n}L + (k * ${tile_w} + j) * ${w_t};
            PUT(to, p, out[j].s[n]${" + LOAD(to, p)" if accumulate else ""});
          }
      }
    }
}
