"""Caches: in memory within limits, on disk for later processes, and in plan packs for other machines.

What this machine decides or makes is a value of a table of ``store``, under a key that ``keys`` makes of all that the
value follows from. A new kind of decision is a new table there, or an entry of one that exists.

- ``store``: the tables on disk, their files and the limit of their size.
- ``keys``: digests of devices, drivers, sources and texts.
- ``artifact_store``: collections that travel between machines: gathered now, or read from plan packs.
- ``bounded``: caches in memory that share one limit in bytes.
"""
