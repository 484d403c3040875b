"""Minimal filtering on GPUs, in portable OpenCL C 1.2: in passes for many channels, in one launch for few."""
