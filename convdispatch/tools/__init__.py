"""The command line: a command turns its arguments into a call of one function of this package, and the result into
text.

A new subcommand is a module of ``cli``, a new peer one of ``benchmark``; what several commands need is here. May import
everything below; nothing imports tools.

- ``cli``: the ``convdispatch`` command, a file a subject.
- ``benchmark``: every solver and other libraries on each layer, beside the device's ceilings.
- ``doctor``: what was found, what did not load, why, and how to mend it.
- ``folders``: the folders that are written on this machine.
- ``problems``: what a command's argument names, as problems.
- ``ready``: makes ready a net, a model, a lock file or a problem, as its first call would, and writes plan packs.
- ``rendered``: a solver's kernels as text, for a device that need not be there.
- ``targets``: kernels compiled for devices that need not be there, and what they use.
- ``progress``: how far a long command is and what remains.
"""
