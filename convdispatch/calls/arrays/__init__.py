"""Arrays of any library as operands: their addresses, their streams, and results of the same kind. A new library
goes to ``known_libraries``.

- ``accepted``: checks for arrays, and conversions to the first input's kind.
- ``array_api``: libraries with DLPack and the array API's names.
- ``array_library``: the interface to another library's arrays.
- ``host_arrays``: arrays in host memory, as a call on the host sees them.
- ``interchange``: DLPack and the array interfaces.
- ``known_libraries``: PyTorch, CuPy, and the library of an array.
- ``operands``: arrays of OpenCL queues as memory and events.
- ``stream_arrays``: arrays in CUDA memory, as a call on a stream sees them.
"""
