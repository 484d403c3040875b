"""Places where an executable is launched: ``bind`` prepares its launches for one kind of memory. A new place is a
module here.

- ``copies``: host memory on devices that take no pointers: copies in, and one out.
- ``host``: host memory on a CPU device with system SVM.
- ``intraop``: host memory, in PyTorch's threads.
- ``queue``: an OpenCL queue's buffers.
- ``stream``: streams of devices whose memory is addresses, one module a kind.
"""
