"""Turns a problem into spectra and complex matrix products on GPUs, in portable OpenCL C 1.2.

A new pass is a template, the code that it prints in ``spectra`` and its launch in ``plan``.

- ``geometry``: the transforms of a problem: which pixels a tile reads and keeps; tensors as matrices of tiles.
- ``spectra``: the passes between tensors and spectra.
- ``plan``: a configuration's layout and launches.
- ``solver``: the solver: transforms, products and parts that are offered, and their predicted time.
"""
