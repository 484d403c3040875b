"""Where commands go: the interface of queues, OpenCL's queues behind it, host memory, recordings."""
