"""Memory of devices and hosts: sizes become blocks of pools. A new pool joins ``allocator``.

- ``allocator``: a pool a queue, counted and limited by device.
- ``cuda_imports``: OpenCL's imports of CUDA's memory.
- ``host_pool``: a pool of host memory, whose blocks are reused.
- ``shared_pool``: memory that OpenCL and CUDA both see.
"""
