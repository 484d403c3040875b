"""Plans at work: steps, and launches that are decided once for OpenCL's queues, CUDA's streams, the host."""
