"""Turns a problem into tiles, transforms and batched products of register tiles, on CPUs.

A new form of the computation is a kernel class beside ``data`` and a name of ``choice``.

- ``case``: a problem in tiles, strips and transforms.
- ``kernel``: what all kernels share: macros, template values, launches.
- ``data``: forward and data gradient, in one kernel or in three, or for few tiles with weights that are transformed
  block by block and never stored.
- ``weights``: the weights' gradient.
- ``choice``: configurations of a problem, and their predicted cost.
- ``error``: the measured error of each tile size, and which math modes admit it.
- ``solver``: the solver of one tile size.
"""
