"""CUDA beside OpenCL: streams as commands, graphs, modules, and the order between the two worlds."""
