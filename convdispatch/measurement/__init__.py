"""What is true of an engine: solvers and problems become times, errors and verdicts.

``find`` searches for the fastest solver of a problem (``search`` holds its parts), ``measure`` turns samples into
medians and benchmarking, ``reference`` is the float64 oracle, ``conformance`` the kit behind ``convdispatch verify``,
``grammar`` reads and writes problems in every dialect, ``shapes`` holds tables of them. What is measured is kept by
``selection.records``. A new dialect goes to ``grammar``, a new check of plugins to ``conformance``.

May import selection, device and api.
"""
