"""Calls of conv and its gradients: arguments and arrays become a problem, its executable and the memory it runs on.

A new option goes to ``arguments``, a new array library to ``arrays``, a new kind of memory becomes a new ``Call``.
May import measurement, selection, device and api.

- ``arguments``: strides, pads and shapes become a ConvProblem.
- ``arrays``: arrays of any library as operands.
- ``call``: the common part of calls on every kind of memory.
- ``call_cache``: the cache of calls.
- ``conv``: the public functions, ``explain`` among them, and the look-up of their calls.
- ``described_call``: checks a caller's arrays and builds their call.
- ``framework``: the common part of the integrations into frameworks.
- ``host_call``: calls on host memory.
- ``planner_pool``: plans in child processes.
- ``quantized``: problems and tables of quantized calls.
- ``queue_call``: calls on OpenCL buffers.
- ``stream_call``: calls on CUDA memory.
"""
