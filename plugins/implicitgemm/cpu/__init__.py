"""Turns a problem into register tiles over bands of rows, on CPUs, in work groups of one work item.

A new solver is a module with a ``Kernel`` of its configuration and a ``KernelSolver`` around it.

- ``kernel``: what all kernels share: macros, launches, packed weights, the solver's common methods.
- ``passes``: a problem as dense passes over a source, one for each phase of a stride.
- ``tiles``: register tiles and bands of the direct kernel, with their predicted cost.
- ``places``: which vectors of a plane a depthwise tile reads, and how their lanes are moved.
- ``direct``: forward and data gradient of every geometry.
- ``weights``: the weights' gradient of every geometry.
- ``pointwise``: 1x1 layers as one matrix product.
- ``skinny``: forward layers of few pixels and long sums.
- ``stem``: forward layers of few source channels, NCHW.
- ``depthwise``: one channel per group, forward and data gradient.
- ``depthwise_vectors``: depthwise kernels of all directions that compute from registers, NCHW.
- ``depthwise_weights``: the weights' gradient of one channel per group.
- ``depthwise_transposed``: transposed depthwise layers, NCHW.
"""
