"""Normalisation: by batch, by group, by neighbours.

- ``norms``: batch norm, local response norm.
- ``row_norm``: rows by their own statistics in one kernel.
- ``table_norm``: norms over channels of bytes, by tables.
"""
