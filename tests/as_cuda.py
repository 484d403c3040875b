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
#define restrict __restrict__
#define inline static __device__ __forceinline__
typedef unsigned uint; typedef unsigned char uchar; typedef unsigned long ulong;
#define get_local_id(i) ((int)threadIdx.x)
#define get_group_id(i) ((int)blockIdx.x)
#define get_num_groups(i) ((int)gridDim.x)
#define barrier(x) __syncthreads()
#define as_uint __float_as_uint
#define as_float __uint_as_float
#define vload_half(i, p) __half2float((p)[i])
#define vstore_half_rte(v, i, p) ((p)[i] = __float2half_rn(v))
#define vstore_half2_rte(v, i, p) (((half2 *)(p))[i] = __floats2half2_rn((v).x, (v).y))
"""


def cuda(text: str) -> str:
    """The product's program as CUDA, whose compiler needs no GPU: instructions and registers are the real ones."""
    text = re.sub(r"#line.*", "", text)
    text = re.sub(r"kernel __attribute__\(\(reqd_work_group_size\((\d+), 1, 1\)\)\)\s*void",
                  r'extern "C" __global__ void __launch_bounds__(\1)', text)  # fmt: skip
    text = re.sub(r"local (float4|uint4) area\[\d+\] __attribute__\(\(aligned\((\d+)\)\)\)",
                  r"extern __shared__ __align__(\2) \1 area[]", text)  # fmt: skip
    text = text.replace("((uint)(ulong)(memory))", "((uint)__cvta_generic_to_shared(memory))")
    text = re.sub(r"\((float[24]|uint[24])\)\(", r"make_\1(", text)
    text = re.sub(r"\bconstant (ulong|int)\b", r"__constant__ \1", text)
    return CUDA + re.sub(r"(?<![.\w])(global|local)\b", "", text)


def assembles_without_spills(text: str, arch: str, folder: Path) -> None:
    """Fails unless the program's kernels, their marked instructions uncovered, assemble and keep all in registers."""
    source = folder / "product.cu"
    source.write_text(cuda(text).replace("//@", ""))
    command = ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-o", folder / "out", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b0 bytes spill stores", done.stderr), done.stderr
