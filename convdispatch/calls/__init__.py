"""conv and its relatives at work: a caller's arguments and arrays become a problem, memory and a plan that is enqueued.

``arguments`` turns strides, pads and shapes into a ConvProblem, ``arrays`` turns NumPy, OpenCL and DLPack arrays into
memory and the result back into the caller's kind, ``conv`` keeps what was decided for a call, so that the next one is
a look-up. ``libraries`` knows other libraries' arrays. A new kind of array goes there, a new option to ``arguments``.

May import measurement, selection, device and api.
"""
