"""Quantized convolutions of arrays on a CUDA device: on the caller's stream, on the arrays' own memory."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from ..api.errors import ConvDispatchError, InvalidArgument
from ..api.policy import current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..device.cuda.ptx import Unlaunchable
from ..device.programs.ptx_program import for_streams
from ..selection import dispatch
from ..selection.prepared import Constant, Prepared
from .arrays.array_library import Library
from .arrays.known_libraries import library_of
from .cuda_call import ALIGNMENT, memory_of, rehearse

_rehearsed: weakref.WeakSet[Prepared] = weakref.WeakSet()
"""Whose programs CUDA has loaded."""


class CudaQuantized:
    """A call whose x is ``x``. Raises InvalidArgument where that is in host memory and another operand is not."""

    def __init__(self, library: Library, x: Any) -> None:
        self.library, self.x = library, x
        number = library.place(x)
        if number is None:
            raise InvalidArgument("x is in host memory, and another operand on a CUDA device: bring them to one place")
        self.number = number

    def on_host(self, bias: Any) -> Any:
        """The bias where its table is made; a copy of a device's array waits, but for a constant's, made once."""
        if bias is None or self.library.place(bias) is None:
            return bias
        if isinstance(bias, Constant):
            return bias.seen_as("host", lambda: self.library.fetch(bias.array))
        return self.library.fetch(bias)

    def dtype(self, array: Any) -> str:
        """By NumPy's name; of a constant that of its array."""
        inner = array.array if isinstance(array, Constant) else array
        return str(inner.dtype.name) if isinstance(inner, np.ndarray) else self.library.dtype(inner)

    def _same_place(self, name: str, array: Any) -> None:
        inner = array.array if isinstance(array, Constant) else array
        if inner is None or (isinstance(inner, np.ndarray) and isinstance(array, Constant)):
            return
        if library_of(type(inner)) is not self.library or self.library.place(inner) != self.number:
            raise InvalidArgument(f"{name} must be a {self.library.name} on CUDA's device {self.number}, as x is")

    def __call__(self, problem: ConvProblem, table: Constant, w: Any, residual: Any, out: Any) -> Any:
        """Give the call to the caller's stream; the array that will be written."""
        library, dtype = self.library, problem.out_dtype or "int32"
        for name, array in (("w", w), ("residual", residual), ("out", out)):
            self._same_place(name, array)
            if name != "w" and array is not None:
                found = self.dtype(array), tuple(array.shape)
                if found != (dtype, problem.y_shape):
                    raise InvalidArgument(
                        f"{name} must be {dtype} of shape {problem.y_shape}, as y is, got {found[0]} of {found[1]}"
                    )
        stream, new = library.stream(self.x, self.number), out is None
        if new:
            forbid_when_frozen("allocate the result (pass out=)")
            out = library.empty(problem.y_shape, self.x, stream, dtype)
        elif library.immutable:
            raise InvalidArgument(f"a {library.name} cannot be written to: pass no out")
        if math.prod(problem.y_shape):
            with stream.current(), for_streams():
                self._run(problem, table, w, residual, out, stream)
        with stream.current():
            if new:
                out = library.finished(out, stream)
            library.keep(stream, (self.x, w, residual, out))
        return out

    def _run(self, problem: ConvProblem, table: Constant, w: Any, residual: Any, out: Any, stream: Any) -> None:
        library, size = self.library, math.prod(problem.y_shape) * problem.out_itemsize
        prepared = dispatch.prepare(problem, stream.place.context, current_policy())
        if prepared not in _rehearsed:
            self._rehearse(problem, prepared, stream)
        promise = w if isinstance(w, Constant) else None
        if promise is not None and isinstance(promise.array, np.ndarray):
            weights = promise.on_device(stream)
        else:
            inner = w if promise is None else promise.array
            weights = memory_of(library, inner, stream, math.prod(problem.w_shape))
        x = memory_of(library, self.x, stream, math.prod(problem.x_shape))
        given = y = memory_of(library, out, stream, size, True)
        added = None if residual is None else memory_of(library, residual, stream, size)
        read = [("x", x, math.prod(problem.x_shape)), ("w", weights, math.prod(problem.w_shape))]
        if added is not None and added.address != y.address:
            read.append(("residual", added, size))
        for name, one, length in read:
            if one.address < y.address + size and y.address < one.address + length:
                raise InvalidArgument(
                    f"out shares memory with {name}, which would change while it is read: pass an out of its own"
                )
        if y.address % ALIGNMENT:
            given = stream.allocate(size)
        words = table.on_device(stream)
        dispatch.run(problem, prepared, stream, x, weights, given, words, added, None, promise)
        if given is not y:
            stream.copy(y, given, size)
        stream.check()

    def _rehearse(self, problem: ConvProblem, prepared: Prepared, stream: Any) -> None:
        """Load the programs before anything runs. Raises ConvDispatchError where a stream cannot take them."""
        if stream.capturing():
            raise ConvDispatchError(
                f"{problem} is new here: a first call chooses, compiles and loads its programs, which a CUDA graph "
                "cannot capture; make one call before the capture"
            )
        try:
            rehearse(prepared, stream)
        except Unlaunchable as error:
            raise ConvDispatchError(
                f"{prepared.solver.name} cannot run {problem} on a CUDA stream: {error}; call with NumPy's arrays or a "
                "pyopencl.array.Array"
            ) from error
        _rehearsed.add(prepared)
