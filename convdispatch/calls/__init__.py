"""conv and its relatives at work: arguments and arrays become a problem, an executable and memory that it runs on.

A new option goes to ``arguments``, a new array library to ``arrays``, a new kind of memory becomes a call of its own.
May import measurement, selection, device and api.

- ``arguments``: strides, pads and shapes become a ConvProblem.
- ``arrays``: arrays of any library as operands.
- ``call``: what calls on every kind of memory have in common.
- ``call_cache``: the one cache of calls, and their key.
- ``conv``: the functions that callers call, and the look-up.
- ``described_call``: checks a caller's arrays and builds their call.
- ``explaining``: ``explain`` for callers.
- ``framework``: what the frameworks' doors share.
- ``guarded_replay``: the fast path of a call that is made again.
- ``host_call``: calls on host memory.
- ``output_padding``: appends the zeros that a transposed convolution reads.
- ``planner_pool``: plans made in child processes.
- ``quantized``: problems and tables of quantized calls.
- ``queue_call``: calls on OpenCL buffers.
- ``stream_call``: calls on CUDA memory.
"""
