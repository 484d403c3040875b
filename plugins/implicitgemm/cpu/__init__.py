"""Implicit GEMM on CPUs: register tiles, one work item a run of them, no local memory, no barriers."""
