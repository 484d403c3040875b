"""OpenCL's drivers, platforms and devices on this machine.

- ``icd``: finds vendors' libraries.
- ``platforms``: platforms and devices, described.
"""
