"""PyTorch's device "opencl": its registration and its operators."""
