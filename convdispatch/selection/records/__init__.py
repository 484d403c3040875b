"""Measurements as immutable records in files that processes share: one file a problem, solver and device.

A new field of a record goes to ``record``.

- ``record``: one measurement with its provenance, as a value and as JSON.
- ``perfdb``: folders of records, merged, and look-ups of a problem's records.
- ``packs``: moves records between databases.
- ``timing``: medians, intervals and the verdict among rivals.
"""
