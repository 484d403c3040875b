## C[m, n] = sum over k of A[m, k] B[n, k], complex, for one frequency and group, of few n: k runs along both's vectors.
//
// Sums stay in lanes until all blocks of k are added; then vectors are merged, two into one of the sums of their
// neighbours, until a vector holds every element's sum once. The vectors of C beyond n are 0.
//
// BLOCKS_K   blocks of LANES summed channels; A_ROWS, B_ROWS rows of a block of a panel
// A_BLOCKS, B_BLOCKS, C_BLOCKS  blocks of a group; A_STRIDE, B_STRIDE, C_STRIDE floats from frequency to frequency
${macros}
<%
digit = "0123456789abcdef"
%>\
% for mr in heights:
inline void dots_${mr}(global const float *restrict a, global const float *restrict b, global float *restrict c) {
% for i, n in pairs(range(mr), range(count)):
  V r${i}_${n} = (V)(0.0f), i${i}_${n} = (V)(0.0f);
% endfor
  ONCE for (int k = 0; k < BLOCKS_K; ++k, a += A_ROWS * (2 * LANES), b += B_ROWS * (2 * LANES)) {
% for n in range(count):
    const V br${n} = LOADW(b + ${n} * 2 * LANES), bi${n} = LOADW(b + ${n} * 2 * LANES + LANES);
% endfor
% for i in range(mr):
    const V ar${i} = LOADW(a + ${i} * 2 * LANES), ai${i} = LOADW(a + ${i} * 2 * LANES + LANES);
% for n in range(count):
    r${i}_${n} = ar${i} * br${n} + r${i}_${n}; i${i}_${n} = ar${i} * bi${n} + i${i}_${n};
    r${i}_${n} = r${i}_${n} - ai${i} * bi${n}; i${i}_${n} = ai${i} * br${n} + i${i}_${n};
% endfor
% endfor
  }
% for n in range(count):
<%
names = [f"{part}{i}_{n}" for i in range(mr) for part in "ri"]
level = 0
width = lanes
%>\
% while len(names) > 1:
% for j in range(len(names) // 2):
<% x, y = names[2 * j : 2 * j + 2] %>\
  const V m${level}_${j}_${n} = (V)(${x}.even, ${y}.even) + (V)(${x}.odd, ${y}.odd);
% endfor
<%
names = [f"m{level}_{j}_{n}" for j in range(len(names) // 2)]
level += 1
%>\
% endwhile
% while width > 2 * mr:
<%
x, width = names[0], width // 2
names = [f"h{width}_{n}"]
%>\
  const float${width} ${names[0]} = ${x}.even + ${x}.odd;
% endwhile
  const float${2 * mr} sums${n} = ${names[0]};
% endfor
% for i, part in pairs(range(mr), range(2)):
  {
    V v = (V)(0.0f);
% for n in range(count):
    v.s${n} = sums${n}.s${digit[2 * i + part]};
% endfor
    STOREW(c + ${i} * 2 * LANES + ${part} * LANES, v);
  }
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
  int m = 0;
% for mr in heights:
  ONCE for (; m + ${mr} <= rows; m += ${mr}) dots_${mr}(as + (long)m * (2 * LANES), bs, cs + (long)m * (2 * LANES));
% endfor
}
<%! from itertools import product as pairs %>
