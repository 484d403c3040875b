## packed[g][e][block][c][NVL] = (G_h w G_w^T)[e] of the weights' blocks of NVL target channels, 0 beyond the last;
## of the groups and blocks from ``group`` and ``first`` on.
##
## first, w_n, w_c, w_t   place of tap 0; elements of w from n to n, from c to c, from tap to tap (below 0: rotated)
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off, int group, int first) {
  const int block = first + get_global_id(1), g = group + get_global_id(2);
  const int c0 = get_global_id(0) * ${pack_c}, c1 = min(c0 + ${pack_c}, ${c});
  ONCE for (int c = c0; c < c1; ++c)
    ONCE for (int v = 0; v < NVL; v += LANES) {
      const int n0 = block * NVL + v, count = clamp(${n_} - n0, 0, LANES);
      global const REAL *from = w + g * ${group}L + n0 * ${w_n}L + c * ${w_c}L + ${first};
      global ACC *to = packed + packed_off + get_global_id(2) * ${out_h * out_w} * UE + (get_global_id(1) * ${c} + c) * NVL + v;
      V mid[${out_h * taps_w}];
      ONCE for (int j = 0; j < ${taps_w}; ++j) {
        V in[${taps_h}];
        if (count == LANES) {
% for k in range(taps_h):
<% tap = f"({k * taps_w} + j) * ({w_t})" %>\
% if w_n == 1:
          in[${k}] = LOADV(from + ${tap});
% else:
          in[${k}] = (V)(${", ".join(f"LOAD(from, {n * w_n} + {tap})" for n in range(lanes))});
% endif
% endfor
        } else {
          ONCE for (int k = 0; k < ${taps_h}; ++k) {
            union { V v; ACC s[LANES]; } some;
            ONCE for (int n = 0; n < LANES; ++n)
              some.s[n] = n < count ? LOAD(from, n * ${w_n}L + (k * ${taps_w} + j) * (${w_t})) : (ACC)0;
            in[k] = some.v;
          }
        }
% for k in range(taps_h):
        const V d${k} = in[${k}];
% endfor
${program_h}\
% for k in range(out_h):
        mid[${k * taps_w} + j] = o${k};
% endfor
      }
      ONCE for (int k = 0; k < ${out_h}; ++k) {
% for j in range(taps_w):
        const V d${j} = mid[k * ${taps_w} + ${j}];
% endfor
${program_w}\
% for j in range(out_w):
        STOREW(to + (k * ${out_w} + ${j}) * UE, o${j});
% endfor
      }
    }
}
