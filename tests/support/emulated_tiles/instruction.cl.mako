## c += a b of one warp, wave or sub-group, as ``LAYOUTS`` says which lane holds what; a sum is rounded toward zero once. Where
## several lanes must hold the same number and do not, the sum is NaN.
##
## engine  a key of ``LAYOUTS``
## type    f16 or bf16
<%
from emulated_tiles import LAYOUTS
l = LAYOUTS[engine]
lanes, na, nb, sums = l["lanes"], l["numbers"], l.get("numbers_b", l["numbers"]), l["sums"]
whose = [0] * (lanes * sums)
for element, place in enumerate(l["d"]):
    whose[place] = element
%>\
#define SCRATCH(items) local ushort scratch[(items) * ${na + nb}]
#define CALLED __attribute__((noinline))
constant ushort PLACE_IN_A[${len(l["a"])}][${l["m"] * l["k"]}] = {${", ".join("{" + ", ".join(map(str, row)) + "}" for row in l["a"])}};
constant ushort PLACE_IN_B[${len(l["b"])}][${l["k"] * l["n"]}] = {${", ".join("{" + ", ".join(map(str, row)) + "}" for row in l["b"])}};
// The element, row by row, that a lane's sum is.
constant ushort ELEMENT_OF_D[${lanes * sums}] = {${", ".join(map(str, whose))}};
% if type == "f16":
inline double number(ushort h) { return vload_half(0, (const half *)&h); }
% else:
inline double number(ushort h) { return as_float((uint)h << 16); }
% endif
CALLED void mma(float *c, local ushort *scratch, const ushort *a, const ushort *b) {
  const int lane = get_local_id(0) % ${lanes};
  local ushort *of_a = scratch + get_local_id(0) / ${lanes} * ${lanes * (na + nb)}, *of_b = of_a + ${lanes * na};
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < ${na}; ++i) of_a[lane * ${na} + i] = a[i];
  for (int i = 0; i < ${nb}; ++i) of_b[lane * ${nb} + i] = b[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < ${sums}; ++i) {
    const int row = ELEMENT_OF_D[lane * ${sums} + i] / ${l["n"]}, column = ELEMENT_OF_D[lane * ${sums} + i] % ${l["n"]};
    double sum = c[i];
    for (int k = 0; k < ${l["k"]}; ++k) {
      const ushort one = of_a[PLACE_IN_A[0][row * ${l["k"]} + k]], other = of_b[PLACE_IN_B[0][k * ${l["n"]} + column]];
      sum += number(one) * number(other);
% if len(l["a"]) > 1:
      if (one != of_a[PLACE_IN_A[1][row * ${l["k"]} + k]] || other != of_b[PLACE_IN_B[1][k * ${l["n"]} + column]]) sum = NAN;
% endif
    }
    c[i] = convert_float_rtz(sum);
  }
}
#define MMA(c, a, b) mma(c, scratch, a, b)
