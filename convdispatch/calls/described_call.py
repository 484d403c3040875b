"""Builds the call for a caller's arguments: checks the arrays, and chooses the kind of call by their memory."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.dtypes import DTYPES, QUANTIZED_INPUTS, dtype_name, numpy_dtype
from ..api.errors import ConvDispatchError, InvalidArgument
from ..api.problem import ConvProblem
from ..api.quantization import Quantization
from ..device import background, runtime
from ..device.cache.store import TEXTS
from ..selection import dispatch
from ..selection.plugins.loader import plugins
from ..selection.prepared import Constant
from ..selection.visible_problem import operand_sizes
from .arguments import PLACES, Request, described_problem
from .arrays.accepted import is_array, refuse_mask
from .arrays.array_library import Library
from .arrays.host_arrays import HostArrays, LibraryArrays
from .arrays.known_libraries import library_of
from .arrays.operands import check_written
from .call import Call
from .host_call import HostCall
from .quantized import checked_problem, table_of
from .queue_call import QueueCall, checked_queue


def described_call(request: Request, library: Library | None, devices: Sequence[Any] | None) -> Call:
    """The call for arrays like a request's. ``library`` is that of the first input, None for NumPy's and OpenCL's
    arrays; ``devices`` has the CUDA devices of all operands, None for host memory. Raises InvalidArgument."""
    input1 = request.operands[PLACES[request.direction][0]]
    if request.quantization is not None:
        _check_kinds(request)
    if library is None or devices is None:
        return _own_call(request, input1)
    device = devices[PLACES[request.direction][0]]
    if device is not None:
        return _stream_call(request, library, input1, devices)
    if request.quantization is None:
        _check_alike(request, library, devices)
    elif any(device is not None for device in devices[:5]):
        raise InvalidArgument("x is in host memory, and another operand on a device: bring them to one place")
    # Another library's arrays in host memory are used as NumPy views.
    *operands, bias, residual = (view_of(library, array) for array in request.arrays)
    viewed = request._replace(operands=tuple(operands), bias=bias, residual=residual)
    return _own_call(viewed, operands[PLACES[request.direction][0]], functools.partial(LibraryArrays, library, input1))


def _stream_call(request: Request, library: Library, input1: Any, devices: Sequence[Any]) -> Call:
    """The call for another library's arrays on a device with streams."""
    from .arrays.stream_arrays import StreamArrays
    from .stream_call import StreamCall, refuse_capture

    device = devices[PLACES[request.direction][0]]
    if request.queue is not None:
        raise InvalidArgument(f"arrays on {library.title(device)} go to their library's current stream: pass no queue")
    problem = _problem(request, library, devices)
    stream = library.stream(input1, device)
    if problem.mb:
        refuse_capture(problem, stream)
    arrays = StreamArrays(library, device, problem)
    return StreamCall(problem, stream, arrays, names=request.roles, has_fallback=False)


def _own_call(request: Request, input1: Any, arrays: Any = HostArrays) -> Call:
    """The call for NumPy's arrays, and for arrays of OpenCL queues."""
    operands, written = request.operands, PLACES[request.direction][2]
    problem, out = _problem(request), operands[written]
    dtype = numpy_dtype(problem.written_dtype) if problem.quantized else input1.dtype.newbyteorder("=")
    if request.quantization is not None:
        # This is only a check: table_of raises for numbers that the table of a quantized convolution cannot hold.
        table_of(request.quantization, problem, request.bias, request.options[4])
    if isinstance(input1, np.ndarray):
        queue = _own_queue(problem) if request.queue is None else checked_queue(request.queue)
        size, arrays_given = operand_sizes(problem)[written], [*operands, request.bias, request.residual]
        foreign_order = any(
            not each.dtype.isnative for index, each in enumerate(arrays_given) if each is not None and index != written
        )
        call = HostCall(problem, queue.context, arrays(problem, queue.device, dtype, size, foreign_order))
        if out is not None:
            call.check_out(tuple(out.shape), out.dtype.newbyteorder("=").name, dtype.name)
            check_written(out)
        return call
    present = [each for each in request.arrays if each is not None and type(each) is not Constant]
    has_events = {hasattr(each, "events") for each in present}
    queue = checked_queue(getattr(input1, "queue", None) if request.queue is None else request.queue)
    events = has_events.pop() if len(has_events) == 1 else None
    queue_call = QueueCall(problem, queue, type(input1), request.roles, events=events)
    if out is not None:
        queue_call.check_out(tuple(out.shape), out.dtype.name, dtype.name)
    return queue_call


def _own_queue(problem: ConvProblem) -> Any:
    """This thread's queue on the default device."""
    if not _looked:
        _looked.add(True)
        _find_default_device(problem)
    return runtime.queue()


_looked: set[bool] = set()
"""Not empty once a call of this process has looked for the default device."""


def _find_default_device(problem: ConvProblem) -> None:
    """Loads plugins while another thread finds the device, and plans a machine's first problem while that thread probes
    the device: most of that time OpenCL's driver compiles its first kernel. A third of a machine's first call was spent
    in waiting for one after the other."""
    listed, expected = threading.Event(), []

    def find() -> None:
        with contextlib.suppress(ConvDispatchError):  # the caller gets the same error from runtime.queue
            try:
                expected.append(runtime.expected_device())
            finally:
                listed.set()
            runtime.default_device()

    # Threads begin without the caller's policy, of which ``frozen`` forbids to compile.
    finding = background.start(functools.partial(contextvars.copy_context().run, find), "convdispatch-first-device")
    plugins()
    if TEXTS.is_empty():  # a machine that rendered texts before has its decisions, so that planning takes little
        import mako.lookup  # noqa: F401

        listed.wait()
        if problem.mb and expected and expected[0] is not None:
            with contextlib.suppress(ConvDispatchError, cl.Error):  # the call itself gets that error, or another device
                dispatch.prepare(problem, runtime.context(expected[0]))
    finding.join()


def _problem(request: Request, library: Library | None = None, devices: Sequence[Any] = (None,) * 5) -> ConvProblem:
    """The problem of a request for arrays that match each other. Raises InvalidArgument, InvalidProblem."""
    if request.quantization is None:
        return described_problem(request, _check_alike(request, library, devices))
    x, w, out = request.operands
    problem = checked_problem(request, *(_dtype(each, library) for each in (x, w)))
    _check_alike(request, library, devices)
    for name, array in (("residual", request.residual), ("out", out)):
        if array is None:
            continue
        kind, expected = (_dtype(array, library), tuple(array.shape)), (problem.written_dtype, problem.y_shape)
        if kind != expected:
            wanted = f"{expected[0]} of shape {expected[1]}"
            raise InvalidArgument(f"{name} must be {wanted}, as y is, got {kind[0]} of {kind[1]}")
    return problem


def _dtype(array: Any, library: Library | None) -> str:
    plain = array.array if type(array) is Constant else array
    return dtype_name(plain.dtype) if library is None or isinstance(plain, np.ndarray) else library.dtype(plain)


def _check_alike(request: Request, library: Library | None, devices: Sequence[Any]) -> str:
    """The dtype of the first input. Raises InvalidArgument unless all operands are of one library (NumPy's and OpenCL's
    arrays count as one) and in one place; and of one dtype, except those of a quantized convolution."""
    index, roles, quantized = PLACES[request.direction][0], request.roles, request.quantization is not None
    given = zip((*roles, "bias", "residual"), request.arrays, devices, strict=False)
    # A missing operand is an error here where it is read. A quantized convolution's bias may be anywhere.
    present = [
        (name, array, device)
        for place, (name, array, device) in enumerate(given)
        if (array is not None or place in PLACES[request.direction][:2]) and not (quantized and name == "bias")
    ]
    for name, array, _ in present:
        plain = getattr(array, "array", array)
        refuse_mask(name, plain)
        constant_on_host = library is not None and type(array) is Constant and isinstance(plain, np.ndarray)
        if not is_array(array) or not (constant_on_host or library_of(type(plain)) is library):
            kinds = "NumPy array, a pyopencl.array.Array or a Tensor"
            kinds = kinds if library is None else f"{library.name} as {roles[index]} is"
            raise InvalidArgument(f"{name} must be a {kinds}, got {type(plain).__name__}")

    def place(array: Any, device: Any) -> str:
        if library is not None:
            return "on the host" if device is None else f"on {library.title(device)}"
        return "NumPy" if isinstance(array, np.ndarray) else "on a device"

    input1 = request.operands[index]
    dtype, first_place = _dtype(input1, library), place(input1, devices[index])
    if dtype not in DTYPES and not quantized:
        hint = ""
        if dtype in QUANTIZED_INPUTS:
            forward = "; numbers of 8 bits take conv(..., quantization=Quantization(...))"
            hint = forward if request.direction == "fwd" else "; of quantized convolutions there are no gradients"
        raise InvalidArgument(f"{roles[index]} must be of {', '.join(DTYPES)}, got {dtype}{hint}")
    for name, array, device in present:
        plain = array.array if type(array) is Constant else array
        if not quantized and _dtype(array, library) != dtype:
            raise InvalidArgument(f"{name} must be {dtype} as {roles[index]} is, got {_dtype(array, library)}")
        its_place = place(plain, device)
        if its_place != first_place and not (type(array) is Constant and isinstance(plain, np.ndarray)):
            raise InvalidArgument(
                f"{name} must be where {roles[index]} is: {roles[index]} is {first_place}, {name} is {its_place}"
            )
    return dtype


def _check_kinds(request: Request) -> None:
    """Raises InvalidArgument for arguments of types that a quantized convolution does not take."""
    if not isinstance(request.quantization, Quantization):
        raise InvalidArgument(f"quantization must be a Quantization, got {request.quantization!r}")
    for name, array in zip(("x", "w", "out", "bias", "residual"), request.arrays, strict=True):
        if not (array is None and name in ("bias", "residual", "out")) and not is_array(array):
            raise InvalidArgument(f"{name} must be an array, got {type(array).__name__}")


def view_of(library: Library, array: Any) -> Any:
    """NumPy's view of a library's array in host memory, or of constant weights; returns other objects unchanged."""
    if array is None or isinstance(array, np.ndarray):
        return array
    if isinstance(array, Constant):
        return array.seen_as("host", lambda: view_of(library, array.array))
    return library.host(array)
