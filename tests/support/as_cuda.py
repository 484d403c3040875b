"""Kernels' text as CUDA, whose compiler needs no GPU: instructions, registers and spills are the real ones."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["assembles_without_spills", "cuda", "needs_nvcc"]

needs_nvcc = pytest.mark.skipif(not (shutil.which("nvcc") and shutil.which("ptxas")), reason="no nvcc and ptxas here")

# CUDA's words for what the kernels say in OpenCL C.
CUDA = """
#include <cuda_fp16.h>
#define __NV_CL_C_VERSION 120
#define restrict __restrict__
#define inline static __device__ __forceinline__
typedef unsigned uint; typedef unsigned char uchar; typedef unsigned long ulong;
#define get_local_id(i) ((int)threadIdx.x)
#define get_group_id(i) ((int)blockIdx.x)
#define get_num_groups(i) ((int)gridDim.x)
#define barrier(x) __syncthreads()
#define mul_hi __umulhi
#define fma __fmaf_rn
#define as_uint __float_as_uint
#define as_float __uint_as_float
#define as_int __float_as_int
#define convert_int_rte __float2int_rn
#define vload_half(i, p) __half2float((p)[i])
#define vload_half2(i, p) __half22float2(((half2 *)(p))[i])
#define vstore_half_rte(v, i, p) ((p)[i] = __float2half_rn(v))
#define vstore_half2_rte(v, i, p) (((half2 *)(p))[i] = __floats2half2_rn((v).x, (v).y))
inline float2 make_float2(float v) { return make_float2(v, v); }
inline float4 make_float4(float v) { return make_float4(v, v, v, v); }
inline uint4 make_uint4(uint v) { return make_uint4(v, v, v, v); }
inline float clamp(float v, float low, float high) { return fminf(fmaxf(v, low), high); }
inline int clamp(int v, int low, int high) { return min(max(v, low), high); }
struct float8 { union { struct { float4 lo, hi; }; struct { float s0, s1, s2, s3, s4, s5, s6, s7; }; }; };
inline float8 make_float8(float4 low, float4 high) { float8 v; v.lo = low; v.hi = high; return v; }
inline float8 make_float8(float v) { return make_float8(make_float4(v), make_float4(v)); }
inline float8 make_float8(float a, float b, float c, float d, float e, float f, float g, float h) {
  return make_float8(make_float4(a, b, c, d), make_float4(e, f, g, h));
}
inline float2 &operator+=(float2 &v, float2 a) { return v = make_float2(v.x + a.x, v.y + a.y); }
inline float4 &operator+=(float4 &v, float4 a) {
  return v = make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w);
}
inline float4 &operator+=(float4 &v, float a) { return v += make_float4(a); }
inline float8 &operator+=(float8 &v, float8 a) { v.lo += a.lo; v.hi += a.hi; return v; }
"""


# OpenCL chooses between vectors number by number, CUDA's "?:" does not.
ACTIVATION = r"""
#define OF_ONE(T, v) \1
inline float activation(float v) { return OF_ONE(float, v); }
inline float2 activation(float2 v) { return make_float2(activation(v.x), activation(v.y)); }
inline float4 activation(float4 v) {
  return make_float4(activation(v.x), activation(v.y), activation(v.z), activation(v.w));
}
inline float8 activation(float8 v) { return make_float8(activation(v.lo), activation(v.hi)); }
#define ACTIVATION(T, v) activation(v)
"""


def cuda(text: str) -> str:
    """The product's program as CUDA, whose compiler needs no GPU: instructions and registers are the real ones."""
    text = re.sub(r"#line.*", "", text)
    text = re.sub(r"#define ACTIVATION\(T, v\) (.*)", ACTIVATION, text, count=1)
    text = re.sub(r"kernel __attribute__\(\(reqd_work_group_size\((\d+), 1, 1\)\)\)\s*void",
                  r'extern "C" __global__ void __launch_bounds__(\1)', text)  # fmt: skip
    text = re.sub(r"local (float4|uint4) area\[\d+\] __attribute__\(\(aligned\((\d+)\)\)\)",
                  r"extern __shared__ __align__(\2) \1 area[]", text)  # fmt: skip
    text = text.replace("((uint)(ulong)(memory))", "((uint)__cvta_generic_to_shared(memory))")
    text = re.sub(r"\((float[248]|uint[24])\)\(", r"make_\1(", text)
    text = re.sub(r"\bconstant (ulong|int)\b", r"__constant__ \1", text)
    return CUDA + re.sub(r"(?<![.\w])(global|local)\b", "", text)


def assembles_without_spills(text: str, arch: str, folder: Path, linked: bool = False) -> None:
    """Fails unless the program's kernels, their marked instructions uncovered, assemble and keep all in registers.

    With ``linked`` as the driver's linker assembles them, to which a program may be one part of several.
    """
    source = folder / "product.cu"
    source.write_text(cuda(text).replace("//@", ""))
    options = [f"-arch={arch}", "-cubin", "-Xptxas", "-v", f"-rdc={str(linked).lower()}"]
    command = ["nvcc", *options, "-o", folder / "out", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b0 bytes spill stores", done.stderr), done.stderr
    assert "Potential Performance Loss" not in done.stderr, done.stderr  # wgmma in turn, or setmaxnreg without effect
