"""Kernel text becomes programs: templates, compilers in processes, and caches of both on disk.

- ``binary_cache``: compiled programs on disk.
- ``compile_pool``: compiles in several processes.
- ``geometry_arguments``: numbers that a kernel text names, as literals or as arguments.
- ``kernels``: turns text and macros into programs, and launches into plans.
- ``proven``: remembers the checks that a device has passed.
- ``ptx_program``: a program of PTX, which OpenCL assembles only if it launches it.
- ``strided_copy``: copies a strided view into contiguous memory.
- ``template_cache``: rendered templates on disk.
- ``work_groups``: the axes along which a launch may be divided.
"""
