"""Where commands run: kernel text becomes programs and launches, sizes become memory, on queues of a device. A
new place for commands goes to ``places``. May import api alone.

- ``background``: work beside the caller's threads.
- ``cache``: bounded caches, and the store of artifacts.
- ``cache_home``: a folder for caches where the user's cannot be written.
- ``child``: a child process that answers questions.
- ``commands``: the interface for commands, and its kinds.
- ``compiler``: a child that compiles kernel text.
- ``cuda``: CUDA beside OpenCL.
- ``cuda_driver``: CUDA's driver by ctypes.
- ``executable``: a plan's launches, recorded once.
- ``garbage``: puts garbage collection off while a process starts.
- ``gemm``: the matrix product.
- ``jsontext``: reads JSON text that others may have written.
- ``matrix_tiles``: the convolution on matrix cores, for any tile instruction.
- ``memory``: pools, limits and pages.
- ``native``: the native call path.
- ``opencl``: vendors, platforms, devices and contexts.
- ``places``: where an executable is launched.
- ``plainfile``: reads files that others may have written, and writes files whole or not at all.
- ``plans``: plans made of steps.
- ``programs``: kernel text becomes programs.
- ``rates``: a device's rates, calibrated or estimated.
- ``replay``: recordings that are replayed.
- ``runtime``: devices, contexts, queues and memory.
- ``size_limits``: whether a problem fits on a device.
- ``startup_profile``: where the time of a first call goes.
- ``tracing``: marks operations of nets for a trace.
"""
