"""The base of calls: a problem, its plan's executable and the kind of its arrays, decided once and run many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pyopencl as cl

from ..api.errors import InvalidArgument, MemoryLimit
from ..api.problem import ConvProblem
from ..device import runtime
from ..measurement import first_sight
from ..selection import dispatch
from ..selection.prepared import Constant
from ..selection.visible_problem import operand_sizes
from .arguments import PLACES


class Call:
    """The common part of calls on every kind of memory.

    ``call(x, w, y, bias, constant, residual, queue)`` runs it and returns the result. None is a missing operand, or a
    result that is to be allocated; ``constant`` is the Constant of which ``w`` is the array, if any. ``first``,
    ``second`` and ``written`` are the indices into (x, w, y) of the two inputs and of the result.
    """

    fast_path: Any = None
    """``path(input1, input2, out, queue, bias, constant, residual)`` makes the call on arrays that kernels use in place
    and returns the result, or None if it has done nothing. None itself if nothing is quicker than ``generally``."""
    arrays: Any
    """The operations on the call's kind of arrays."""
    host = False
    """Whether operands are in host memory."""
    ask: Callable[[], Any]
    """A function that returns the calling thread's queue, for calls on host memory that name none."""
    launches: Any = None
    """The executable, bound to a place where it is launched (``device/places``); None if there is nothing to launch."""
    prepared: Any = None
    """The prepared plan; None before ``prepare``, and if there is nothing to compute."""
    solver = "none: nothing to compute"
    """The name of the solver that computes the call."""
    packed_key: Any = None
    """The key under which a Constant stores the address of the weights that were packed for this call."""
    repeat: Any = None
    """The function that ``replay`` returned, set once the call was made twice in a row."""
    form: Any = None
    """The memory format of all operands, for PyTorch's operators."""
    shape: Any = None
    """The result's shape in PyTorch's order of axes."""
    native: Any = None
    """The launches for the native call path, once ``program`` was called; False if it cannot make the call."""
    backward_ready = True

    def __init__(self, problem: ConvProblem, device: cl.Device, count: Callable[[str], Any] | None = None) -> None:
        """``count(solver)`` is called after each call. Raises InvalidArgument for a dtype that the device lacks."""
        unsupported = runtime.device_info(device).supports(problem.dtype)
        if unsupported:
            raise InvalidArgument(unsupported)
        first_sight.seen(device)
        self.problem, self.device, self.count = problem, device, count
        self.places = self.first, self.second, self.written = PLACES[problem.direction]
        self.sizes = operand_sizes(problem)
        self.out_shape = problem.out_shape
        self.empty = math.prod(self.out_shape) == 0 or problem.mb == 0

    def __call__(
        self,
        x: Any,
        w: Any,
        y: Any,
        bias: Any = None,
        constant: Constant | None = None,
        residual: Any = None,
        queue: Any = None,
    ) -> Any:
        """Run the call; returns the array that is written, for host memory with its values computed."""
        if type(w) is Constant:
            constant, w = w, w.array
        operands, result = (x, w, y), None
        if queue is None and self.host:
            queue = self.ask()
        try:
            if self.fast_path is not None:
                input1, input2, out = operands[self.first], operands[self.second], operands[self.written]
                result = self.fast_path(input1, input2, out, queue, bias, constant, residual)
            if result is None:
                result = self.generally([x, w, y], bias, constant, residual, queue)
        except MemoryError as error:
            raise_no_room(self.out_shape, error)
        if self.count is not None:
            self.count(self.solver)
        return result

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """Make the call on any arrays: operands that kernels cannot read in place are copied before, and the result is
        copied to an array that they cannot write in place."""
        raise NotImplementedError

    def prepare(self, context: cl.Context) -> None:
        """Choose the plan, or take it from the cache. Raises as ``dispatch.prepare``."""
        self.prepared = dispatch.prepare(self.problem, context)
        self.solver = str(self.prepared.solver.name)

    @property
    def packs(self) -> bool:
        """Whether kernels read a packed form of constant weights."""
        return self.prepared is not None and bool(self.prepared.packed_size)

    @property
    def zeroes(self) -> bool:
        """Whether the result of a batch of no images is filled with zeros: the weights' gradient is."""
        return self.problem.direction == "bwd_weights" and not self.problem.accumulate

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """A function that repeats the call that was just made twice with ``given`` (x, w, y, bias, residual and queue),
        without a key to build or look up; None if there is no such fast path. It compares its arguments, ``(operands,
        options, shape)`` and on host memory ``bias, residual, queue``, with those of that call, and returns the result,
        or None for a call that differs. ``library`` is that of the arrays, None for NumPy's and OpenCL's."""
        return None

    def program(self, launcher: Any) -> Any:
        """The launches in the form of the native call path, converted once; None if it cannot make the call."""
        if self.native is None:
            arrays = self.arrays
            # Only launches of kernels on addresses can be converted.
            convert = None if arrays.strides is None else getattr(self.launches, "program", None)
            converted = convert and convert(launcher, self.solver, arrays.shape, arrays.strides)
            self.native = converted or False
        return self.native or None

    def check_out(self, shape: tuple[int, ...], dtype: str, expected: str) -> None:
        """Raises InvalidArgument for an ``out`` without the result's shape or dtype."""
        if shape != self.out_shape:
            raise InvalidArgument(f"out must have shape {self.out_shape}, got {shape}")
        if dtype != expected:
            raise InvalidArgument(f"out must be {expected}, got {dtype}")


def refuse_shared(name: str) -> NoReturn:
    """Raises InvalidArgument for an ``out`` that overlaps with an operand."""
    raise InvalidArgument(f"out shares memory with {name}, which would change while it is read: pass an out of its own")


def raise_no_room(shape: tuple[int, ...], error: MemoryError) -> NoReturn:
    """Raises MemoryLimit where there was no memory for a result."""
    if isinstance(error, MemoryLimit):
        raise error
    raise MemoryLimit(f"the host has no memory left for a result of shape {shape}: {error}") from error
