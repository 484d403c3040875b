"""Turns a problem into a product of tiles that work groups read from the tensors, in portable OpenCL C 1.2, on GPUs.

A new solver is a module with a dataclass of its configuration and a ``KernelSolver`` around it.

- ``solver``: the tiled product, for every geometry.
- ``tile``: its configuration.
- ``product``: its sizes and offsets, from a problem and a tile.
- ``loader``: which elements of a slice each work item loads.
- ``text``: its kernel's text.
- ``plan``: its launches.
- ``choice``: its tiles that fit a device, and their predicted time.
- ``narrow``: groups of at most four output channels, without local memory.
- ``depthwise``: one channel a group, forward and data gradient.
- ``depthwise_sums``: one channel a group, the weights' gradient.
- ``depthwise_tile``: the tiles of both.
- ``depthwise_weights``: the weights' gradient of one input channel and several filters a group.
"""
