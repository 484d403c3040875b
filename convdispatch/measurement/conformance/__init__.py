"""The kit that a vendor runs against its plugin: every case must be refused with a reason, or computed right.

``convdispatch verify PLUGIN`` runs it. A new check goes to ``checks``, a new case to the lists of ``levels`` or to
``space``.

- ``verify``: verifies a plugin on a device and makes the report.
- ``session``: runs cases through a plugin's solvers in this process.
- ``workers``: runs cases in child processes, several at once.
- ``levels``: the cases, by level.
- ``space``: generated cases: which letters take which values.
- ``covering``: few rows in which every pair of values occurs.
- ``checks``: the checks that a plan goes through, in order.
- ``contract``: the checks of what a solver returns before anything is compiled.
- ``data``: operands, the float64 result, and the error allowed.
- ``digests``: the digests that results have on every device under ``math="reproducible"``.
- ``memory``: operands, output and workspace between guard zones.
- ``errata``: tries errata again.
- ``outcome``: the outcome of a case, and the report as JSON.
"""
