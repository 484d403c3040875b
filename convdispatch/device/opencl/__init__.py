"""OpenCL's drivers, platforms and devices on this machine.

- ``contexts``: makes contexts without Python's lock.
- ``icd``: finds vendors' libraries.
- ``platforms``: platforms and devices, described.
- ``processor``: which processor a CPU device is.
- ``vendor_trial``: loads a vendor's library in a child first.
"""
