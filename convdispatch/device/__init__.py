"""Where commands run: kernel text becomes programs and launches, sizes become memory, on queues of a device.

``icd`` finds OpenCL's vendors, ``runtime`` devices, contexts and queues, ``kernels`` and ``binaries`` compile and keep
programs, ``steps`` strings launches together, ``memory`` pools and limits allocations, ``gemm`` is the matrix product
that lowerings lean on. ``commands`` is the interface for where commands go; ``queues`` and ``recording`` are two kinds
of it. ``cuda``, ``bridge``, ``streampool``, ``imports`` and ``sharedpool`` are what OpenCL and CUDA share.
A new kind of queue goes here.

May import api alone.
"""
