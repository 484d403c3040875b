"""Tensor cores on planes of 16-bit numbers, packed channels last: ``nvidia.wgmma`` and ``nvidia.mma``."""
