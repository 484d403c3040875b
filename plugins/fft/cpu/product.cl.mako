## C[m, n] = sum over k of A[m, k] B[k, n], complex, for one frequency and group: four real products in registers.
//
// B and C are panels of vectors over n; A's elements are read one by one: ${"k runs along A's vectors" if along else "m runs along A's vectors, k along its rows"}.
// A work item is one (frequency, group): tiles of MR rows by NV vectors run over all of k.
//
// KS         ${"channels summed; A has ceil(KS / LANES) blocks" if along else "unused: rows summed is an argument"}
// A_ROWS, B_ROWS, C_ROWS    rows of a block of a panel
// A_BLOCKS, B_BLOCKS, C_BLOCKS  blocks of a group; A_STRIDE, B_STRIDE, C_STRIDE floats from frequency to frequency
${macros}

% for mr, nv in pairs(heights, widths):
inline void tile_${mr}_${nv}(global const float *restrict a, global const float *restrict b, global float *restrict c,
                  int sum, int first) {
% for i, v in pairs(range(mr), range(nv)):
  V r${i}_${v} = (V)(0.0f), i${i}_${v} = (V)(0.0f);
% endfor
% if not along:
  if (!first) {
% for i, v in pairs(range(mr), range(nv)):
    r${i}_${v} = LOADW(c + (${v} * C_ROWS + ${i}) * (2 * LANES)); i${i}_${v} = LOADW(c + (${v} * C_ROWS + ${i}) * (2 * LANES) + LANES);
% endfor
  }
% endif
% if along:
  ONCE for (int k0 = 0; k0 < sum; k0 += LANES, a += A_ROWS * (2 * LANES)) {
    const int count = min(LANES, sum - k0);
    ONCE for (int k = 0; k < count; ++k, b += 2 * LANES) {
% else:
  {
    ONCE for (int k = 0; k < sum; ++k, a += 2 * LANES, b += 2 * LANES) {
% endif
% for v in range(nv):
      const V br${v} = LOADW(b + ${v} * B_ROWS * (2 * LANES)), bi${v} = LOADW(b + ${v} * B_ROWS * (2 * LANES) + LANES);
% endfor
% for i in range(mr):
      const float ar${i} = a[${f"{i} * 2 * LANES + k" if along else i}], ai${i} = a[${f"{i} * 2 * LANES + LANES + k" if along else f"{i} + LANES"}];
% for v in range(nv):
      r${i}_${v} = ar${i} * br${v} + r${i}_${v}; i${i}_${v} = ar${i} * bi${v} + i${i}_${v};
% endfor
% for v in range(nv):
      r${i}_${v} = r${i}_${v} - ai${i} * bi${v}; i${i}_${v} = ai${i} * br${v} + i${i}_${v};
% endfor
% endfor
    }
  }
% for i, v in pairs(range(mr), range(nv)):
  STOREW(c + (${v} * C_ROWS + ${i}) * (2 * LANES), r${i}_${v}); STOREW(c + (${v} * C_ROWS + ${i}) * (2 * LANES) + LANES, i${i}_${v});
% endfor
}
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void product(global const float *restrict left, global const float *restrict right, global float *restrict result,
             long a_off, long b_off, long c_off, int rows, int sum, int blocks, int first) {
  const long f = get_global_id(0), g = get_global_id(1);
  global const float *as = left + a_off + f * A_STRIDE + g * ((long)A_BLOCKS * A_ROWS * (2 * LANES));
  global const float *bs = right + b_off + f * B_STRIDE + g * ((long)B_BLOCKS * B_ROWS * (2 * LANES));
  global float *cs = result + c_off + f * C_STRIDE + g * ((long)C_BLOCKS * C_ROWS * (2 * LANES));
  int n = 0;
% for nv in widths:
  ONCE for (; n + ${nv} <= blocks; n += ${nv}) {
    global const float *b = bs + (long)n * B_ROWS * (2 * LANES);
    global float *c = cs + (long)n * C_ROWS * (2 * LANES);
    int m = 0;
% for mr in heights:
    ONCE for (; m + ${mr} <= rows; m += ${mr})
% if along:
      tile_${mr}_${nv}(as + (long)m * (2 * LANES), b, c + (long)m * (2 * LANES), sum, 1);
% else:
      tile_${mr}_${nv}(as + ((long)(m / LANES) * A_ROWS * 2 * LANES + m % LANES), b, c + (long)m * (2 * LANES), sum, first);
% endif
% endfor
  }
% endfor
}
<%! from itertools import product as pairs %>
