"""The per-layer benchmark: turns problems into times of every solver and of peers, and these into tables.

A new peer is a module of ``measuring``, a new figure a function of ``summary``.

- ``measuring``: the measurements, in child processes.
- ``report``: what was measured, as values that are read from and written to JSON.
- ``summary``: what a report says: a line a layer, sums a net, gaps.
- ``quiet``: whether the machine was quiet.
- ``terminal``: a report as tables in the terminal.
"""
