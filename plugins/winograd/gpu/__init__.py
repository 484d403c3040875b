"""Turns a problem into transformed tiles and batched matrix products on GPUs, in passes.

A new pass is a template and a method of ``plan.Passes``.

- ``work``: its pieces, and the layout of transformed tiles in memory.
- ``plan``: the passes as launches.
- ``choice``: configurations of the passes, their predicted time, and which math modes admit a tile size.
- ``solver``: the solver, and what it refuses.
"""
