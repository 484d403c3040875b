"""Turns a problem into tiles, transforms and batched products of register tiles, on CPUs.

A new form of the computation is a kernel class beside ``data`` and a name of ``choice``.

- ``case``: a problem in strips of tiles.
- ``kernel``: what all kernels share: macros, template values, launches.
- ``data``: forward and data gradient: in one kernel, in three, or without stored weights for few tiles.
- ``weights``: the weights' gradient.
- ``choice``: configurations of a problem, and their predicted cost.
- ``solver``: the solver of one tile size, its error, and which math modes admit it.
"""
