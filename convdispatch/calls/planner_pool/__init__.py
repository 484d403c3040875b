"""Plans made in child processes while calls go on: a problem goes in, its solver, texts and binaries come out.

- ``decision_cache``: what earlier processes chose.
- ``pool``: the children of a device, and what they returned.
- ``progress_line``: a line on a terminal while kernels compile.
- ``worker``: the child.
"""
