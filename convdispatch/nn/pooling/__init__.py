"""Pooling: windows of one, two or three axes, with indices, forward and backward.

- ``pooling2d``: max, average and adaptive pooling of two axes, and by these of one and three.
"""
