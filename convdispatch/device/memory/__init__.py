"""Memory of devices and hosts: pools, limits, pages, and what OpenCL and CUDA both see."""
