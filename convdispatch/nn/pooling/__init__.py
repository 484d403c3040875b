"""Pooling: windows of one, two or three axes, with indices, forward and backward."""
