"""Builds the call for a caller's arguments: checks the arrays, and chooses the kind of call by their memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.dtypes import DTYPES, QUANTIZED_INPUTS, dtype_name, numpy_dtype
from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..api.quantization import Quantization
from ..device import runtime
from ..selection.prepared import Constant
from ..selection.visible_problem import operand_sizes
from .arguments import PLACES, Request, check_bias, described_problem
from .arrays.accepted import is_array, refuse_mask, shape_of
from .arrays.array_library import Library
from .arrays.host_arrays import LibraryArrays, NumPyArrays
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
    if library is None:
        return _own_call(request, input1)
    assert devices is not None
    device = devices[PLACES[request.direction][0]]
    return (
        _stream_call(request, library, input1, device, devices)
        if device is not None
        else _library_call(request, library, input1, devices)
    )


def _stream_call(request: Request, library: Library, input1: Any, device: Any, devices: Sequence[Any]) -> Call:
    """The call for another library's arrays on a device with streams."""
    from .arrays.stream_arrays import StreamArrays
    from .stream_call import StreamCall, refuse_capture

    if request.queue is not None:
        raise InvalidArgument(f"arrays on {library.title(device)} go to their library's current stream: pass no queue")
    if request.quantization is not None:
        problem = _quantized_on_stream(request, library, device)
    else:
        dtype = _one_library(request, library, devices)
        problem = _problem(request, dtype)
        if dtype not in DTYPES:
            raise InvalidArgument(f"arrays must be of {', '.join(DTYPES)}, got {dtype}")
    stream = library.stream(input1, device)
    if problem.mb:
        refuse_capture(problem, stream)
    arrays = StreamArrays(library, device, problem)
    through_host = functools.partial(_through_host, library, stream.device)
    return StreamCall(problem, stream, arrays, names=request.roles, through_host=through_host)


def _library_call(request: Request, library: Library, input1: Any, devices: Sequence[Any]) -> Call:
    """The call for another library's arrays in host memory, which are used as NumPy views."""
    kinds = {type(array) for array in request.arrays if array is not None}
    if request.quantization is not None:
        if any(device is not None for device in devices[:5]):
            raise InvalidArgument("x is in host memory, and another operand on a device: bring them to one place")
    elif kinds != {type(input1)} or any(device is not None for device in devices[:5]):
        _one_library(request, library, devices)
    *operands, bias, residual = (view_of(library, array) for array in request.arrays)
    viewed = request._replace(operands=tuple(operands), bias=bias, residual=residual)
    return _own_call(viewed, operands[PLACES[request.direction][0]], functools.partial(LibraryArrays, library, input1))


def _own_call(request: Request, input1: Any, arrays: Any = NumPyArrays) -> Call:
    """The call for NumPy's arrays, and for arrays of OpenCL queues."""
    direction, operands = request.direction, request.operands
    written = PLACES[direction][2]
    if request.quantization is None:
        for index, (array, name) in enumerate(zip(operands, request.roles, strict=True)):
            if index != written:
                shape_of(array, name)
        _check_places(request, input1)
    problem = _problem(request, dtype_name(input1.dtype))
    if not problem.quantized:
        check_bias(request.bias, problem.channels_out)
    out = operands[written]
    dtype = numpy_dtype(problem.written_dtype) if problem.quantized else input1.dtype.newbyteorder("=")
    if request.quantization is not None:
        _check_quantized(request, problem, input1)
    if isinstance(input1, np.ndarray):
        queue = runtime.queue() if request.queue is None else checked_queue(request.queue)
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


def _problem(request: Request, dtype: str) -> ConvProblem:
    if request.quantization is not None:
        return checked_problem(request, dtype, dtype_name(request.operands[1].dtype))
    return described_problem(request, dtype)


def _check_places(request: Request, input1: Any) -> None:
    """Raises InvalidArgument unless NumPy's or OpenCL's arrays are of one dtype, and all in host memory or none."""
    roles = request.roles
    named = dict(zip((*roles, "bias", "residual"), request.arrays, strict=True))
    present = {name: array for name, array in named.items() if array is not None}
    for name, array in present.items():
        refuse_mask(name, getattr(array, "array", array))
        if not is_array(array) or library_of(type(getattr(array, "array", array))) is not None:
            raise InvalidArgument(
                f"{name} must be a NumPy array, a pyopencl.array.Array or a Tensor, got {type(array).__name__}"
            )
    first_name = roles[PLACES[request.direction][0]]
    dtype, host = input1.dtype.name, isinstance(input1, np.ndarray)
    if dtype not in DTYPES:
        hint = ""
        if dtype in QUANTIZED_INPUTS:
            forward = "; numbers of 8 bits take conv(..., quantization=Quantization(...))"
            hint = forward if request.direction == "fwd" else "; of quantized convolutions there are no gradients"
        raise InvalidArgument(f"{first_name} must be of {', '.join(DTYPES)}, got {dtype}{hint}")
    for name, array in present.items():
        if array.dtype.name != dtype:
            raise InvalidArgument(f"{name} must be {dtype} as {first_name} is, got {array.dtype.name}")
        plain = array.array if isinstance(array, Constant) else array
        on_host = isinstance(plain, np.ndarray)
        if on_host != host and not (on_host and isinstance(array, Constant)):
            wording = {True: "NumPy", False: "on a device"}
            raise InvalidArgument(
                f"{name} must be where {first_name} is: {first_name} is {wording[host]}, {name} is {wording[on_host]}"
            )


def _one_library(request: Request, library: Library, devices: Sequence[Any]) -> str:
    """The common dtype of all operands. Raises InvalidArgument unless they are of one library, device and dtype."""
    index, roles = PLACES[request.direction][0], request.roles
    role, dtype = roles[index], library.dtype(request.operands[index])
    for name, array, device in zip((*roles, "bias", "residual"), request.arrays, devices, strict=False):
        plain = array.array if type(array) is Constant else array
        if array is None:
            continue
        if isinstance(plain, np.ndarray) and type(array) is Constant:
            found_dtype = plain.dtype.name
        elif library_of(type(plain)) is not library:
            raise InvalidArgument(f"{name} must be a {library.name} as {role} is, got {type(plain).__name__}")
        elif device != devices[index]:
            place, found = ("on the host" if n is None else f"on {library.title(n)}" for n in (devices[index], device))
            raise InvalidArgument(f"{name} must be where {role} is: {role} is {place}, {name} is {found}")
        else:
            found_dtype = library.dtype(plain)
        if found_dtype != dtype:
            raise InvalidArgument(f"{name} must be {dtype} as {role} is, got {found_dtype}")
    return dtype


def _check_kinds(request: Request) -> None:
    """Raises InvalidArgument for arguments of types that a quantized convolution does not take."""
    if not isinstance(request.quantization, Quantization):
        raise InvalidArgument(f"quantization must be a Quantization, got {request.quantization!r}")
    for name, array in zip(("x", "w", "out", "bias", "residual"), request.arrays, strict=True):
        if not (array is None and name in ("bias", "residual", "out")) and not is_array(array):
            raise InvalidArgument(f"{name} must be an array, got {type(array).__name__}")
        refuse_mask(name, getattr(array, "array", array))


def _check_quantized(request: Request, problem: ConvProblem, input1: Any) -> None:
    """Raises InvalidArgument for operands of a quantized call whose dtypes, shapes or memory do not match."""
    _, w, out = request.operands
    dtype, shape, on_host = numpy_dtype(problem.written_dtype), problem.y_shape, isinstance(input1, np.ndarray)
    for name, array in (("residual", request.residual), ("out", out)):
        if array is not None and (tuple(array.shape) != shape or array.dtype != dtype):
            raise InvalidArgument(
                f"{name} must be {dtype.name} of shape {shape}, as y is, got {array.dtype.name} of {tuple(array.shape)}"
            )
    for name, array in (("w", w), ("residual", request.residual), ("out", out)):
        if array is not None and not isinstance(array, Constant) and isinstance(array, np.ndarray) != on_host:
            raise InvalidArgument(f"{name} must be where x is, NumPy's or on a device")
    assert request.quantization is not None
    # This is only a check: table_of raises for numbers that the table of a quantized convolution cannot hold.
    table_of(request.quantization, problem, request.bias, request.options[4])


def _quantized_on_stream(request: Request, library: Library, device: Any) -> ConvProblem:
    x, w, out = request.operands
    plain = w.array if isinstance(w, Constant) else w
    w_kind = dtype_name(plain.dtype) if isinstance(plain, np.ndarray) else library.dtype(plain)
    problem = checked_problem(request, library.dtype(x), w_kind)
    for name, array in (("w", w), ("residual", request.residual), ("out", out)):
        plain = array.array if isinstance(array, Constant) else array
        if plain is None or (isinstance(plain, np.ndarray) and isinstance(array, Constant)):
            continue
        if library_of(type(plain)) is not library or library.place(plain) != device:
            raise InvalidArgument(f"{name} must be a {library.name} on {library.title(device)}, as x is")
        kind = library.dtype(plain), tuple(plain.shape)
        if name != "w" and kind != (problem.out_dtype, problem.y_shape):
            raise InvalidArgument(
                f"{name} must be {problem.out_dtype} of shape {problem.y_shape}, as y is, got {kind[0]} of {kind[1]}"
            )
    return problem


def view_of(library: Library, array: Any) -> Any:
    """NumPy's view of a library's array in host memory, or of constant weights; returns other objects unchanged."""
    if array is None or isinstance(array, np.ndarray):
        return array
    if isinstance(array, Constant):
        return array.seen_as("host", lambda: view_of(library, array.array))
    return library.host(array)


def _through_host(
    library: Library, device: Any, problem: ConvProblem, names: Sequence[str], operands: Sequence[Any], *extra: Any
) -> Any:
    """The result of a call on CUDA arrays, computed on copies on the host by OpenCL's queue; waits."""
    x, w, y, bias, residual = (
        each if each is None or isinstance(each, np.ndarray) else library.fetch(each) for each in (*operands, *extra)
    )
    problem = problem.replace(constant_weights=False)
    size = operand_sizes(problem)["xwy".index(problem.written)]
    dtype = next(each.dtype for each in (x, y) if each is not None)
    arrays = NumPyArrays(problem, device, dtype, size, False)
    return HostCall(problem, runtime.context(device), arrays)(x, w, y, bias, None, residual)
