"""A problem as cuDNN's operation graph: one convolution, the engines its heuristics name for it, and plans.

An engine and its knobs are numbers, so a configuration can be recorded and made again:
``{"engine": 38, "knobs": [[2, 17], [18, 1]]}``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from typing import Any

from convdispatch.api import ConvProblem, TensorLayout

from .library import CudnnError, Descriptor

DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""Numbers of ``cudnnDataType_t``."""
CROSS_CORRELATION = 1
"""Number of ``cudnnConvolutionMode_t``."""
TENSOR_ALIGNMENT = 16
"""Alignment in bytes that is declared to cuDNN for every tensor."""
MAX_KNOBS = 64
"""Size of the array that an engine's knobs are read into: more than cuDNN has kinds of knobs."""
HEURISTIC_MODES = (3, 1, 2)
"""Numbers of ``cudnnBackendHeurMode_t``: A (learned), B (the older one), and the fallback engines."""


class Kind:
    """Numbers of ``cudnnBackendDescriptorType_t``."""

    CONVOLUTION = 1
    ENGINE = 2
    CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    KNOB = 7
    GRAPH = 15
    PACK = 16
    TENSOR = 17


_OPERATION = {
    # Direction: (cuDNN's operation descriptor, number of its first attribute: alpha, beta, convolution, w, x, y).
    "fwd": (10, 700),
    "bwd_data": (12, 706),
    "bwd_weights": (11, 712),
}
_SILENT_WINOGRAD = {("bwd_weights", 17)}
"""(direction, engine) of Winograd engines that cuDNN's notes do not call so, but their kernels' names and errors do."""
TENSOR_CORE, DOWN_CONVERT, FFT, NONDETERMINISTIC, WINOGRAD = 0, 1, 3, 4, 5
"""Numbers of ``cudnnBackendNumericalNote_t``."""


class Candidate:
    """An engine's configuration by numbers, and the notes cuDNN puts on the engine."""

    def __init__(self, config: Descriptor) -> None:
        engine = config.get_descriptors(300, Kind.ENGINE)[0]
        self.engine: int = engine.get(1301, "int")[0]
        self.notes = frozenset(engine.get(1303, "note", 16))
        choices = config.get_descriptors(302, Kind.KNOB, MAX_KNOBS)
        self.knobs = [[choice.get(600, "knob")[0], choice.get(601, "int")[0]] for choice in choices]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as JSON values."""
        return {"engine": self.engine, "knobs": self.knobs}


def tensor_of(problem: ConvProblem, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sizes, strides in elements) of x, w or y with two or three spatial axes; channels are the second axis."""
    axes = problem.axes if problem.ndim > 1 else "hw"
    letter, layout = {"x": "i", "w": "k", "y": "o"}[name], TensorLayout.of(problem, name)
    space = tuple(getattr(problem, letter + axis) for axis in axes)
    channels = problem.oc if name == "y" else problem.ic // (problem.g if name == "w" else 1)
    sizes = (problem.oc if name == "w" else problem.mb, channels, *space)
    return sizes, (layout.image, layout.channel, *layout.axes[-len(axes) :])


def _graph(problem: ConvProblem, handle: c_void_p) -> Descriptor:
    axes = problem.axes if problem.ndim > 1 else "hw"
    double = problem.dtype == "float64"
    tensors = {}
    for name in "xwy":
        sizes, strides = tensor_of(problem, name)
        tensor = Descriptor(Kind.TENSOR).set(901, "dtype", DTYPES[problem.dtype]).set(902, "int", *sizes)
        tensors[name] = (
            tensor.set(903, "int", *strides).set(906, "int", ord(name)).set(900, "int", TENSOR_ALIGNMENT).finalize()
        )
    convolution = Descriptor(Kind.CONVOLUTION)
    convolution.set(106, "int", len(axes)).set(100, "dtype", DTYPES["float64" if double else "float32"])
    convolution.set(101, "mode", CROSS_CORRELATION)
    for attribute, field, suffix in ((105, "p", ""), (104, "p", "_r"), (102, "d", ""), (103, "s", "")):
        convolution.set(attribute, "int", *(getattr(problem, field + axis + suffix) for axis in axes))
    kind, alpha = _OPERATION[problem.direction]
    operation = Descriptor(kind)
    scalar = "double" if double else "float"
    operation.set(alpha, scalar, 1.0).set(alpha + 1, scalar, 0.0).set(alpha + 2, "descriptor", convolution.finalize())
    for offset, name in enumerate("wxy"):
        operation.set(alpha + 3 + offset, "descriptor", tensors[name])
    return Descriptor(Kind.GRAPH).set(800, "handle", handle).set(801, "descriptor", operation.finalize()).finalize()


def transforms_tiles(problem: ConvProblem, candidate: Candidate) -> bool:
    """Whether an engine uses Winograd transforms, by cuDNN's note or by ``_SILENT_WINOGRAD``."""
    return WINOGRAD in candidate.notes or (problem.direction, candidate.engine) in _SILENT_WINOGRAD


def _allowed(problem: ConvProblem, candidate: Candidate) -> bool:
    """Whether the problem's math permits an engine: full float32 without tensor cores, as PyTorch reads the notes."""
    notes = candidate.notes
    if problem.math == "fast":
        return True
    if DOWN_CONVERT in notes:
        return False
    if problem.dtype == "float32" and problem.math != "tf32" and TENSOR_CORE in notes:
        return False
    if problem.dtype == "float32" and max(problem.kh, problem.kw) > 3 and transforms_tiles(problem, candidate):
        return False  # Winograd engines of 5x5 kernels have errors of 1.4e-3 to 2.5e-3
    if problem.math != "ieee":
        return True
    return FFT not in notes and not transforms_tiles(problem, candidate)


@functools.lru_cache(maxsize=512)
def _proposed(problem: ConvProblem, handle: int) -> tuple[Candidate, ...]:
    graph = _graph(problem, c_void_p(handle))
    proposed: list[Candidate] = []
    for mode in HEURISTIC_MODES:
        heuristics = Descriptor(Kind.HEURISTICS).set(201, "descriptor", graph).set(200, "heuristics", mode)
        try:
            results = heuristics.finalize().get_descriptors(202, Kind.CONFIG)
        except CudnnError:  # cuDNN's heuristics in this mode do not support the operation
            continue
        for result in results:
            candidate = Candidate(result)
            if all(candidate.config != earlier.config for earlier in proposed):
                proposed.append(candidate)
    return tuple(proposed)


def candidates(problem: ConvProblem, handle: c_void_p) -> list[Candidate]:
    """Candidates that cuDNN's heuristics propose and the problem's ``math`` permits, the best first."""
    request = problem.replace(math="float32", constant_weights=False)
    return [each for each in _proposed(request, handle.value or 0) if _allowed(problem, each)]


def execution_plan(problem: ConvProblem, handle: c_void_p, config: Mapping[str, Any]) -> tuple[Descriptor, int]:
    """(execution plan, bytes of workspace) of an engine's configuration. Raises CudnnError if the engine cannot."""
    engine = Descriptor(Kind.ENGINE).set(1300, "descriptor", _graph(problem, handle)).set(1301, "int", config["engine"])
    knobs = [
        Descriptor(Kind.KNOB).set(600, "knob", kind).set(601, "int", value).finalize()
        for kind, value in config["knobs"]
    ]
    configuration = Descriptor(Kind.CONFIG).set(300, "descriptor", engine.finalize())
    if knobs:
        configuration.set(302, "descriptor", *knobs)
    plan = Descriptor(Kind.PLAN).set(400, "handle", handle).set(401, "descriptor", configuration.finalize()).finalize()
    return plan, plan.get(402, "int")[0]


def variant_pack(places: Sequence[int]) -> Descriptor:
    """cuDNN's variant pack of one run: the CUDA addresses of x, w, y and the workspace (0 if the plan needs none)."""
    pack = Descriptor(Kind.PACK).set(1000, "int", *map(ord, "xwy")).set(1001, "pointer", *places[:3])
    return pack.set(1003, "pointer", places[3]).finalize()
