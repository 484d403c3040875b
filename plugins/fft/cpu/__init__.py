"""Turns a problem into spectra whose vectors run along channels, on CPUs: a work item transforms a run of tiles.

A new kernel is a template, its macros in ``source`` and its launch in ``solver``.

- ``geometry``: the layout of spectra in the workspace, and the pieces of a call.
- ``code``: the straight-line transforms of a geometry.
- ``source``: the text of its program.
- ``solver``: the solver ``fft.tiled``: its launches, and configurations with their predicted cost.
"""
