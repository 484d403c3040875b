"""CUDA beside OpenCL: streams as commands, programs of one launched by the other, and the order between them.

- ``bridge``: orders CUDA's work with an OpenCL queue's.
- ``import_trial``: tries an import of memory in a child.
- ``machine_code``: machine code of PTX, cached on disk.
- ``modules``: programs and kernels for ``cuLaunchKernel``.
- ``ptx``: PTX made fit for CUDA's launcher.
- ``stream``: a stream as commands, and graphs of them.
"""
