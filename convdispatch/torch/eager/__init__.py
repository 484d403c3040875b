"""One operator call at a time: on the host's memory, on a CUDA stream, or on OpenCL's buffers."""
