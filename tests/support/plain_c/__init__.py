"""Kernel text in plain OpenCL C that stands in for what nvidia's plans take from a GPU, for devices without it.

- ``instructions.cl.mako``: tensor cores, asynchronous copies, barriers.
- ``copies.cl.mako``: the copy engine of ``nvidia.tma``.
- ``int8_copies.cl.mako``: the copy engine of ``nvidia.int8``.
"""
