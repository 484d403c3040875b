"""16-bit convolutions, channels last, whose fragments are read straight from memory: ``nvidia.grouped``."""
