"""Measurements as immutable records in files that processes share: one file a problem, solver and device.

``record`` is one measurement with its provenance, ``perfdb`` the folders of them, ``packs`` many of them in one file.
"""
