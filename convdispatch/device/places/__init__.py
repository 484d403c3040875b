"""Where an executable runs: an OpenCL queue's buffers, a CPU device's host memory, PyTorch's threads, a CUDA stream."""
