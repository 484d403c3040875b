"""Measurements of engines: times, errors and verdicts for solvers and problems.

Measurements are stored by ``selection.records``. A new dialect goes to ``grammar``, a new check of plugins to
``conformance``. May import selection, device and api.

- ``find``: measures the solvers that could compute a problem, and records their times.
- ``search``: the parts of ``find``: candidates, their trial, benchmarking, the verdict.
- ``aside``: a search in a background process.
- ``measure``: times rival candidates in interleaved rounds.
- ``compiling``: compiles with a time limit.
- ``run_reports``: where a run was, and the files of reports, for the kit and the benchmark.
- ``farm``: child processes that are started again after a death, and tasks spread over them.
- ``reference``: the float64 reference of every convolution.
- ``quantized``: the reference, and random operands, of quantized convolutions.
- ``probing``: checks once that a device computes a small problem as a plan should.
- ``sampled``: judges a computed tensor by float64 at a sample of its elements.
- ``conformance``: the kit behind ``convdispatch verify``.
- ``calibration``: measures a device's rates.
- ``first_sight``: has a device calibrated in a child process when it is first used.
- ``peaks``: measures a device's ceilings, for the roofline.
- ``grammar``: reads problems in every dialect.
- ``shapes``: tables of problems.
"""
