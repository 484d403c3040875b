"""Implicit GEMM for GPUs, in portable OpenCL C 1.2: tiles in local memory, sums in registers."""
