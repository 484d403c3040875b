"""Pooling: windows of one, two or three axes, with indices, forward and backward.

- ``pooling2d``: max, average and adaptive pooling of two axes.
- ``pooling_nd``: pooling of one and three axes by that of two.
"""
