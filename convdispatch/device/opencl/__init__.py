"""OpenCL's installable drivers, platforms and devices, as they are found on this machine."""
