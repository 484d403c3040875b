"""The header: everything that a caller or a plugin may import. Names load when first used.

Callers: ``conv`` and its relatives, ``constant``, ``policy``, ``frozen``, ``explain``, ``ConvProblem``, the errors.
Plugins: ``Solver``, ``Declared``, ``Plan``, ``DeviceInfo``, ``hookimpl``, ``KernelPlan``, ``StepPlan``, and the shared
kernel text (the ``.cl`` files here) and matrix product that plans are made of. Declarations alone: a new exported name
goes into ``__init__.pyi``, a new word of a problem into ``problem``, a new variable into ``settings``.

- ``problem``: ConvProblem, one convolution's geometry, validated, as a value.
- ``literals``: the values of options, as types.
- ``matrix``: the part for plugins over matrix cores.
- ``dtypes``: the element types and how OpenCL C stores and sums them.
- ``activations``: the table of activations, and their words in each language.
- ``quantization``: scales and zero points of a quantized convolution, and the table that its kernels read.
- ``quantized``: the rules of quantized problems.
- ``geometry``: every direction as one gather of taps, in phases.
- ``device``: DeviceInfo, what a solver may ask about a device.
- ``rates``: DeviceRates, how fast a device multiplies, moves and launches.
- ``cpu``: properties of a device that kernels for CPUs need.
- ``cuda``: the header's part for plugins over CUDA's libraries.
- ``hookspecs``: the two hooks.
- ``solver``: Solver and Plan, the two things that a plugin writes.
- ``declared``: solvers that are imported when a device that they serve is first seen.
- ``policy``: ``policy(...)`` and ``frozen()``.
- ``results``: the results of a search.
- ``errors``: the exceptions that a caller may get, and the warning.
- ``fault_text``: other code's exceptions and texts, shortened for a sentence.
- ``settings``: the environment variables.
- ``lazy``: names of a package that load when first used.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .lazy import lazy_names

_load, __all__ = lazy_names(globals())


class _Header(types.ModuleType):
    """A package whose names load on first use, even names that a submodule shares (``conv``, ``policy``).

    Importing ``convdispatch.calls.conv`` would bind the submodule over the function; that assignment is ignored.
    """

    def __getattr__(self, name: str) -> Any:
        return _load(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Header
