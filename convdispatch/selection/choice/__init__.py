"""The order of choice: the solvers that accept a problem become candidates, best first, each with its reason.

A new reason to prefer goes to ``evidence`` or ``preferred`` of ``ranking``, a new
refusal to ``refusal`` there.

- ``ranking``: the order, from top to bottom, and who is no candidate.
- ``lockfile``: what a lock file, or the ranks of one training, fixed.
- ``evidence``: what was measured of a problem, and what a measured neighbour says of it.
- ``neighbours``: corrects predictions by what was measured at similar problems.
- ``set_aside``: solvers that failed or lacked memory in this process.
- ``provenance``: what a measurement rests on: plugin, version, kernel text, driver.
"""
