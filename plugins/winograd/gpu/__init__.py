"""Turns a problem into transformed tiles and batched matrix products on GPUs, in passes.

A new pass is a template and a method of ``solver.Passes``.

- ``work``: its pieces, and the layout of transformed tiles in memory.
- ``choice``: configurations of the passes, their predicted time, and which math modes admit a tile size.
- ``solver``: the solver, what it refuses, and the passes as launches.
"""
