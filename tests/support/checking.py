"""Runs one problem through the public calls between guard zones and compares it with the reference.

Integer data first: sums of small integers are exact, so a direct method must match bit for bit. Then real data,
within the error that the dtype and the contract allow. A failure's message ends with the line that reruns it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import paths  # noqa: F401 (a script of this folder finds bench then)

import convdispatch
from bench.place import call as public_call
from convdispatch.api.activations import ACTIVATIONS, parse_activation
from convdispatch.api.dtypes import numpy_dtype
from convdispatch.api.errors import NoSolver
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.data import data_for
from convdispatch.selection.choice import ranking
from convdispatch.selection.derivation import named
from convdispatch.selection.plugins.loader import plugins

GUARD = 4096
"""Bytes before and after every operand; a multiple of every device's buffer alignment."""
_SENTINEL = 0xA5
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}


@dataclass
class Operands:
    """What a problem reads, in its dtype, by name; ``initial`` is what the output holds before."""

    x: np.ndarray | None = None
    w: np.ndarray | None = None
    y: np.ndarray | None = None
    bias: np.ndarray | None = None
    residual: np.ndarray | None = None
    initial: np.ndarray | None = None

    def present(self) -> dict[str, np.ndarray]:
        """Those that are not None."""
        return {name: array for name, array in vars(self).items() if array is not None}


def make_operands(problem: ConvProblem, data: str = "integer", seed: int = 0) -> tuple[Operands, np.ndarray]:
    """Random operands for a problem and the expected result in float64: the kit's ``"integer"`` data, or ``"real"``
    data, standard normal, for which errors are stated."""
    if data == "real":
        shapes = {name: getattr(problem, name + "_shape") for name in "xwy" if name != problem.written}
        shapes |= {"bias": (problem.channels_out,)} if problem.bias else {}
        shapes |= {"residual": problem.out_shape} if problem.residual else {}
        shapes |= {"initial": problem.out_shape} if problem.accumulate else {}
        random, dtype = np.random.default_rng(seed), numpy_dtype(problem.dtype)
        operands = Operands(**{name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()})
        return operands, reference.compute(problem, **operands.present())
    drawn = data_for(problem, data, seed)
    return Operands(**{name: array.copy() for name, array in drawn.operands.items()}), drawn.expected.copy()


def call(problem: ConvProblem, arrays: dict[str, Any], out: Any = None, queue: Any = None) -> Any:
    """Make the public call that a problem describes; ``arrays`` holds x, w, y, bias, residual as it needs them."""
    return public_call(problem, arrays, out=out, queue=queue)


class Guarded:
    """An array between sentinel bytes, on the host or on a device; ``offset`` moves it by that many elements."""

    def __init__(self, values: np.ndarray, queue: Any = None, offset: int = 0) -> None:
        self.queue, self.start = queue, GUARD + offset * values.itemsize
        self.before = np.full(self.start + values.nbytes + GUARD, _SENTINEL, np.uint8)
        self._payload(self.before)[...] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.before.flags.writeable = False
        if queue is None:
            self.host = self.before.copy()
            self.array = self._payload(self.host).view(values.dtype).reshape(values.shape)
        else:
            import pyopencl as cl
            import pyopencl.array as cl_array

            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            self.buffer = cl.Buffer(queue.context, flags, hostbuf=self.before)
            self.array = cl_array.Array(queue, values.shape, values.dtype, data=self.buffer, offset=self.start)

    def _payload(self, memory: np.ndarray) -> np.ndarray:
        return memory[self.start : len(memory) - GUARD]

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """(all bytes, the values) as they are now."""
        if self.queue is not None:
            import pyopencl as cl

            self.host = np.empty_like(self.before)
            cl.enqueue_copy(self.queue, self.host, self.buffer)
        return self.host, self._payload(self.host).view(self.dtype).reshape(self.shape)

    def damage(self, payload_too: bool) -> str | None:
        """Where bytes changed outside the payload, or anywhere, in words; None when they did not."""
        now, _ = self.read()
        changed = now != self.before
        if not payload_too:
            self._payload(changed)[...] = False
        places = np.flatnonzero(changed)
        if len(places) == 0:
            return None
        first, end = int(places[0]) - self.start, self.nbytes
        where = f"{-first} bytes before" if first < 0 else f"{first - end} bytes after" if first >= end else "inside"
        return f"{len(places)} bytes changed, the first {where} the tensor of {end} bytes"


def check(
    problem: ConvProblem,
    device: Any = None,
    *,
    solver: str | None = None,
    data: str = "integer",
    seed: int = 0,
    arrays: str = "device",
    offset: int = 0,
    tolerance: float | None = None,
) -> float:
    """Run ``problem`` and assert that the result is right and that nothing else changed; returns the relative error.

    ``solver`` is a name or glob for ``policy``, ``arrays`` is ``"device"`` or ``"host"`` (NumPy), ``offset`` shifts
    every device array by elements, so that it starts unaligned. Raises AssertionError with the line that reruns.
    """
    queue = runtime.queue(device)
    operands, expected = make_operands(problem, data, seed)
    on_device = queue if arrays == "device" else None
    dtype = numpy_dtype(problem.dtype)
    blank = operands.initial if problem.accumulate else np.full(problem.out_shape, np.nan, dtype)
    given = {name: Guarded(array, on_device, offset) for name, array in operands.present().items() if name != "initial"}
    out = Guarded(blank, on_device, offset)
    pin = convdispatch.policy(solver=solver, fallback=False) if solver else contextlib.nullcontext()
    with pin:
        chosen = first_choice(problem, queue.device)
        result = call(
            problem, {name: guarded.array for name, guarded in given.items()}, out.array, queue if on_device else None
        )
        queue.finish()
    assert result is out.array, f"out= was given, another array came back\n{rerun(problem, chosen, seed)}"
    for name, guarded in {**given, "out": out}.items():
        damage = guarded.damage(payload_too=name != "out")
        assert damage is None, f"{chosen}: {name}: {damage}\n{rerun(problem, chosen, seed)}"
    _, got = out.read()
    limit = limit_of(problem, chosen, data, tolerance)
    return compare(got, expected, limit, f"{chosen}, {data} data", rerun(problem, chosen, seed))


def first_choice(problem: ConvProblem, device: Any) -> str | None:
    """The solver that would run, or None; in a third of the time in which explain asks all others for their reasons."""
    try:
        return ranking.rank(problem, runtime.device_info(device))[0].solver.name
    except NoSolver:
        return None


def limit_of(problem: ConvProblem, chosen: str, data: str = "integer", tolerance: float | None = None) -> float:
    """The relative error that ``chosen`` may have: none on whole numbers where the solver claims exactness."""
    exact = data == "integer" and named(chosen, plugins().solvers).exact and not _rounds(problem)
    return 0.0 if exact else tolerance if tolerance is not None else TOLERANCE[problem.dtype]


def compare(got: np.ndarray, expected: np.ndarray, limit: float, what: str = "", hint: str = "") -> float:
    """Assert that the relative error is at most ``limit`` (0: equal bit for bit up to the zero's sign); return it."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}\n{hint}"
    error = reference.relative_error(got, expected)
    if not error <= limit:
        values = got.astype(np.float64)
        wrong = ~(np.abs(values - expected) <= max(limit, 1e-300) * max(np.abs(expected).max(), 1e-300))
        first = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
        raise AssertionError(
            f"{what}: relative error {error:.3g}, allowed {limit:.3g}; {wrong.sum()} of {wrong.size} elements differ, "
            f"the first at {first}: got {values[first]}, expected {expected[first]}\n{hint}"
        )
    return error


def _rounds(problem: ConvProblem) -> bool:
    return problem.activation is not None and not ACTIVATIONS[parse_activation(problem.activation)[0]].exact


def rerun(problem: ConvProblem, solver: str | None, seed: int) -> str:
    """The problem and the line that runs the current test again."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    line = f"rerun: pytest '{test}'" if test else f"rerun: python tests/support/sweep.py --solver {solver} {problem}"
    return f"problem {problem}, solver {solver}, seed {seed}\n{line}"
