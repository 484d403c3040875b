"""Compiles kernels for devices that need not be there, by their vendors' own compilers, and counts what they use.

A new target is a row of ``DESCRIBED``; a new vendor's compiler is a function in ``COMPILERS``.

- ``described``: devices as their drivers describe them, by a target's name.
- ``compilers``: a kernel text and a target become errors, registers, scratch and local memory, and occupancy.
- ``compiling``: every solver's kernels for drawn problems, and a row of a table for each solver and target.
"""
