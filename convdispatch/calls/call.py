"""A call: a problem, its plan's executable and the kind of its arrays, decided once and run on each call's arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..api.errors import InvalidArgument, MemoryLimit
from ..api.problem import ConvProblem
from ..device import runtime
from ..measurement import first_sight
from ..selection import dispatch
from ..selection.prepared import Constant
from ..selection.visible_problem import operand_sizes
from .arguments import PLACES

if TYPE_CHECKING:
    import pyopencl as cl


class Call:
    """The common part of calls on every kind of memory.

    ``call(x, w, y, bias, constant, residual, queue)`` runs it and returns the result. None stands for an operand that
    there is not, and for a result that is to be allocated; ``constant`` is the promise behind ``w``, if there is one.
    """

    fast_path: Any = None
    """``path(lead, other, out, queue, bias, constant, residual)`` makes the call on arrays that kernels use in place:
    the result, or None before anything is done. None itself where there is nothing quicker than ``generally``."""
    host = False
    """Whether operands are in host memory."""
    ask: Callable[[], Any]
    """A function that returns the calling thread's queue, for calls on host memory that name none."""
    launches: Any = None
    """The executable, bound to where it is launched (``device/places``); None while there is nothing to launch."""
    prepared: Any = None
    """The prepared plan; None before ``prepare``, and where there is nothing to compute."""
    solver = "none: nothing to compute"
    """The name of the solver that computes the call."""
    packed_key: Any = None
    """The key under which constant weights hold the address of the form packed for this call."""
    again: Any = None
    """The fast path that repeats a call that was made twice in a row; see ``guarded_replay``."""
    form: Any = None
    """The memory format of all operands, for PyTorch's operators."""
    shape: Any = None
    """The result's shape in PyTorch's order of axes."""
    native: Any = None
    """The launches for the native call path, once it has asked for them; False where it cannot make the call."""
    backward_ready = True

    def __init__(self, problem: ConvProblem, device: cl.Device, count: Callable[[str], Any] | None = None) -> None:
        """``count(solver)`` is called after each call. Raises InvalidArgument for a dtype that the device lacks."""
        unsupported = runtime.device_info(device).supports(problem.dtype)
        if unsupported:
            raise InvalidArgument(unsupported)
        first_sight.seen(device)
        self.problem, self.device, self.count = problem, device, count
        self.places = self.lead, self.other, self.written = PLACES[problem.direction]
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
        """Run the call; returns the array that is written, on host memory once its values are there."""
        if type(w) is Constant:
            constant, w = w, w.array
        operands, done = (x, w, y), None
        if queue is None and self.host:
            queue = self.ask()
        try:
            if self.fast_path is not None:
                lead, other, out = operands[self.lead], operands[self.other], operands[self.written]
                done = self.fast_path(lead, other, out, queue, bias, constant, residual)
            if done is None:
                done = self.generally([x, w, y], bias, constant, residual, queue)
        except MemoryError as error:
            raise_no_room(self.out_shape, error)
        if self.count is not None:
            self.count(self.solver)
        return done

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """The call on any arrays: operands that kernels cannot read in place are copied before, and a result that they
        cannot write in place is copied after."""
        raise NotImplementedError

    def prepare(self, context: cl.Context) -> None:
        """Choose the plan, or find it in the cache. Raises as ``dispatch.prepare``."""
        self.prepared = dispatch.prepare(self.problem, context)
        self.solver = str(self.prepared.solver.name)

    @property
    def packs(self) -> bool:
        """Whether kernels read a packed form of constant weights."""
        return self.prepared is not None and bool(self.prepared.packed_size)

    @property
    def zeroes(self) -> bool:
        """Whether a result of no images is to be filled: the gradient of no images is zero."""
        return self.problem.direction == "bwd_weights" and not self.problem.accumulate

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """A function that repeats the call that was just made twice with ``given`` (x, w, y, bias, residual and queue);
        None where nothing is quicker than to look the call up. ``library`` is that of its arrays, None for NumPy's and
        OpenCL's."""
        return None

    def program(self, launcher: Any) -> Any:
        """The launches in the form that the native call path takes, made once; None where it cannot make the call."""
        raise NotImplementedError

    def check_out(self, shape: tuple[int, ...], dtype: str, expected: str) -> None:
        """Raises InvalidArgument for an ``out`` that is not like the result."""
        if shape != self.out_shape:
            raise InvalidArgument(f"out must have shape {self.out_shape}, got {shape}")
        if dtype != expected:
            raise InvalidArgument(f"out must be {expected}, got {dtype}")


def refuse_shared(name: str) -> NoReturn:
    """Raises InvalidArgument for an ``out`` over an operand that is still read."""
    raise InvalidArgument(f"out shares memory with {name}, which would change while it is read: pass an out of its own")


def raise_no_room(shape: tuple[int, ...], error: MemoryError) -> NoReturn:
    """Raises MemoryLimit where there was no memory for a result."""
    if isinstance(error, MemoryLimit):
        raise error
    raise MemoryLimit(f"the host has no memory left for a result of shape {shape}: {error}") from error
