"""Vendors' shared libraries: a library behind ``convdispatch_plugin.h`` becomes a plugin whose solvers are as Python's.

A field of the header is added to ``abi``; what a new function does goes into ``solver`` or ``plan``.

- ``discovery``: finds ``.icd`` files and the libraries that they name.
- ``library``: loads a library and checks its table.
- ``abi``: the header's structures and codes in ctypes.
- ``solver``: asks a library's solver.
- ``plan``: enqueues a library's plan on host memory, an OpenCL queue or a CUDA stream.
"""
