"""16-bit tensors, channels last, fed to the tensor cores by Hopper's copy engine: ``nvidia.tma``."""
