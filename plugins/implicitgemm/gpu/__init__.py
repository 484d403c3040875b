"""Turns a problem into a product of tiles that work groups read from the tensors, in portable OpenCL C 1.2, on GPUs.

A new solver is a module with a dataclass of its configuration and a ``KernelSolver`` around it.

- ``solver``: the solver of the tiled product, for every geometry: what of a problem is compiled into its programs, the
  numbers that are their arguments, and its launches.
- ``product``: tiles, and the sizes, loaders and offsets of the tiled product, from a problem and a tile.
- ``choice``: tiles that fit a device, and their predicted time.
- ``narrow``: groups of at most four output channels, without local memory.
- ``depthwise``: one channel per group, forward and data gradient; the tiles of both depthwise solvers.
- ``depthwise_sums``: one channel per group, the weights' gradient.
"""
