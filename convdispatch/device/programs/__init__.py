"""Kernel text becomes programs: templates, compilers in processes, and caches of both on disk.

- ``binary_cache``: compiled programs on disk.
- ``compile_pool``: compiles in several processes.
- ``kernels``: text and macros become programs, launches become plans.
- ``proven``: checks that a device passed once.
- ``ptx_program``: a program known by its PTX.
- ``strided_copy``: copies a strided view into contiguous memory.
- ``template_cache``: rendered templates on disk.
- ``work_groups``: along which axes a launch may be divided.
"""
