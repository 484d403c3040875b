## c += a b by Intel's matrix engines, of one sub-group: cl_intel_subgroup_matrix_multiply_accumulate.
##
## engine  dpas8 or dpas16: by the sub-group's size, the type of a
## type    f16 or bf16
<% operand = "int8" if engine == "dpas8" else "short8"; name = f"intel_sub_group_{type}_{type}_matrix_mad_k16" %>\
#define SCRATCH(items)
// Declared here because older compilers have the function, but no declaration of it.
float8 __attribute__((overloadable)) ${name}(${operand} a, int8 b, float8 sum);
inline void mma(float *c, const ushort *a, const ushort *b) {
  *(float8 *)c = ${name}(*(const ${operand} *)a, *(const int8 *)b, *(const float8 *)c);
}
#define MMA(c, a, b) mma(c, a, b)
