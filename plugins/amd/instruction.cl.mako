## c += a b by AMD's matrix cores, of one wave: clang's builtins of LLVM's AMDGPU target.
##
## engine  which instruction; a key of ``instructions.INSTRUCTIONS``
## type    f16 or bf16
<%
half = type == "f16"
numbers = {"wmma_gfx11": 16, "wmma_gfx12": 8}.get(engine, 4)
operand = f"{'half' if half else 'short'}{numbers}"
sums = {"mfma32": 16, "mfma16": 4}.get(engine, 8)
builtin = {
    "mfma32": "mfma_f32_32x32x8" + ("f16" if half else "bf16_1k"),
    "mfma16": "mfma_f32_16x16x16" + ("f16" if half else "bf16_1k"),
    "wmma_gfx11": f"wmma_f32_16x16x16_{type}_w32",
    "wmma_gfx12": f"wmma_f32_16x16x16_{type}_w32_gfx12",
}[engine]
%>\
#define SCRATCH(items)
inline void mma(float *c, const ushort *a, const ushort *b) {
  const float${sums} sum = __builtin_amdgcn_${builtin}(*(const ${operand} *)a, *(const ${operand} *)b, *(const float${sums} *)c${", 0, 0, 0" if engine.startswith("mfma") else ""});
  *(float${sums} *)c = sum;
}
#define MMA(c, a, b) mma(c, a, b)
