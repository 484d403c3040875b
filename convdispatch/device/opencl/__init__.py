"""OpenCL's drivers, platforms and devices on this machine."""
