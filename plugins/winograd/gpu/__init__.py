"""Turns a problem into transformed tiles and batched matrix products on GPUs, in passes or in one launch.

A new pass is a template and a method of ``plan.Passes``.

- ``work``: its pieces, and the layout of transformed tiles in memory.
- ``plan``: the passes as launches.
- ``fused_work``: sizes and cycles of the fused form.
- ``fused``: the solver of the fused form.
- ``choice``: configurations of the passes, and their predicted time.
- ``error``: the measured error of each tile size, and which math modes admit it.
- ``solver``: the solver of the passes, and what both solvers refuse.
"""
