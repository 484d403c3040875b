"""Channels-last tensors of 16 bits, or of float32 for TF32, fed by Hopper's copy engine: ``nvidia.tma``."""
