"""Vendors' shared libraries: a library that implements ``convdispatch_plugin.h`` becomes a plugin with Python solvers.

A field of the header is added to ``abi``; the call of a new function goes into ``solver`` or ``plan``.

- ``discovery``: finds ``.icd`` files and the libraries that they name.
- ``library``: loads a library and checks its table.
- ``abi``: the header's structures and codes in ctypes.
- ``plan``: enqueues a library's plan on host memory, an OpenCL queue or a CUDA stream.
"""
