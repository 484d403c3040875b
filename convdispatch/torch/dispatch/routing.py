"""enable and disable: route the convolutions of PyTorch's dispatcher to us, below autograd, on the CPU and on CUDA."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ...api import settings as environment
from ...api.errors import ConvDispatchError, Frozen, InvalidArgument, InvalidPolicy, InvalidProblem
from ...calls.framework.fallback import Enabled as Enabled
from ...calls.framework.fallback import Fallback
from ...calls.framework.tiers import Compiling
from ...device import runtime
from ...device.places.stream import KINDS
from .. import counting, ranks
from ..captures import device_type, watch_captures
from ..dynamo_frames import looks_on, unseen
from ..geometry import padded
from ..settings import DEFAULT, Settings, checked
from . import engine, native
from .quick_depthwise import quick_depthwise, quick_depthwise_backward

TRACED = (
    "torch.jit.trace records PyTorch's own kernels: inside enable() a call of ours would be a constant of the graph"
)
_tracing = torch._C._is_tracing
_OPERATORS = {"convolution": engine.forward, "convolution_backward": engine.backward}
_originals: dict[tuple[str, str], Any] = {}
_lock = threading.RLock()
_library: Any = None
_in_force: Settings | None = None


def enable(
    *,
    math: str | None = None,
    solver: str | None = None,
    min_flops: float | None = None,
    batch_invariant: bool | None = None,
    strict_nan: bool | None = None,
) -> Enabled:
    """Compute this process's convolutions by this package, forward and backward, on CPUs and CUDA devices.

    From the call on, or inside ``with enable():``. ``math`` is ``conv``'s for float32 data; None obeys PyTorch's
    switches (``torch.backends.cudnn.allow_tf32`` on CUDA, ``torch.set_float32_matmul_precision`` on CPUs). ``solver``
    names the only solvers that may run, by glob; convolutions of fewer than ``min_flops`` operations stay PyTorch's.
    ``batch_invariant`` and ``strict_nan`` are ``policy``'s: an image's bits do not depend on the batch, an infinity or
    NaN reaches only what reads it; None leaves it to the policy. What cannot be done here goes to
    PyTorch's own kernel, and ``counters`` says why.

    Raises InvalidArgument, and RuntimeError for a rank that hears nothing of rank 0.
    """
    environment.check()
    promises = {"batch_invariant": batch_invariant, "strict_nan": strict_nan}
    settings, before = checked(math, solver, min_flops, **promises), _in_force
    ranks.meet()
    watch_captures()
    _set(settings)
    return Enabled(lambda: _set(before))


def disable() -> None:
    """Give convolutions back to PyTorch."""
    _set(None)


def _set(settings: Settings | None) -> None:
    global _library, _in_force
    with _lock:
        _in_force = settings
        native.under(settings or DEFAULT)
        if settings is None:
            if _library is not None:
                native.uninstall()
                _library._destroy()
                _library = None
        elif _library is None:
            _library = _install()


def _install() -> Any:
    library, keys = torch.library.Library("aten", "IMPL"), ("CPU", device_type().upper())
    kernels: dict[tuple[str, str], Callable[..., Any]] = {}
    for operator, compute in _OPERATORS.items():
        for key in keys:
            if (operator, key) not in _originals:
                _originals[operator, key] = torch.library.get_kernel(f"aten::{operator}", key)
            kernels[operator, key] = _kernel(operator, key, compute)

    def in_python(key: str, library: Any) -> None:
        with warnings.catch_warnings():  # PyTorch warns once of an overridden kernel, which is intended here
            warnings.simplefilter("ignore")
            for operator in _OPERATORS:
                library.impl(operator, kernels[operator, key], key, with_keyset=True)

    for key in keys:
        host = native.HOST.get(key.lower())
        if host is not None and not native.runs(key):
            # PyTorch reports an override from C++ to its log, which cannot be silenced.
            quietly = torch.library.Library("aten", "IMPL")
            in_python(key, quietly)
            quietly._destroy()
        bound = {each: functools.partial(kernels[each, key], _keyset(key)) for each in _OPERATORS}
        if host is None or not all(native.install(f"aten::{each}", key, bound[each], host) for each in bound):
            in_python(key, library)
    return library


def _kernel(operator: str, key: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    original = _originals[operator, key]

    def kernel(keys: Any, *arguments: Any) -> Any:
        def theirs() -> Any:
            return original.call_boxed(keys, *arguments)

        def quick() -> Any:
            if operator == "convolution":
                return quick_depthwise(*arguments)
            return quick_depthwise_backward(functools.partial(original.call_boxed, keys), *arguments)

        # ``torch.jit.trace`` records what aten::convolution calls below this kernel. The check takes 0.03 µs. Other
        # recorders (FakeTensor, make_fx, functorch) come before the devices' kernels and see a call earlier.
        if _tracing():
            counting.left(operator, TRACED)
            return theirs()
        return _computed(operator, compute, theirs, arguments, _in_force, quick)

    return kernel


def settings_in_force() -> Settings | None:
    """The arguments of ``enable``; None where it is not in force."""
    return _in_force


def original(operator: str, *arguments: Any) -> Any:
    """The results of PyTorch's own kernel for the arguments' device, none of which is a view: of an empty batch and of
    one axis they are views there, which no operation in place may change behind a custom operator."""
    if operator == "convolution":
        x, w, bias, *geometry = arguments
        x, geometry = padded(x, geometry)  # type: ignore[assignment]
        arguments = (x, w, bias, *geometry)
    kind = arguments[0].device.type
    key = kind.upper() if kind in KINDS else "CPU"
    if (operator, key) not in _originals:
        with _lock:
            if _library is None:
                _originals[operator, key] = torch.library.get_kernel(f"aten::{operator}", key)
    results = _originals[operator, key].call_boxed(_keyset(key), *arguments)
    return _no_view(results) if isinstance(results, torch.Tensor) else tuple(map(_no_view, results))


def _no_view(result: torch.Tensor | None) -> torch.Tensor | None:
    if result is None or not result._is_view():
        return result
    return result.clone(memory_format=torch.preserve_format)


def _keyset(key: str) -> Any:
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))


def routed(
    operator: str,
    compute: Callable[..., Any],
    theirs: Callable[[], Any],
    arguments: tuple[Any, ...],
    settings: Settings | None,
    quick: Callable[[], Any] | None = None,
) -> Any:
    """``compute(*arguments)`` or, with the reason counted, PyTorch's ``theirs()``; while a kernel is compiled
    ``quick()``, unless that returns None.

    For arguments that PyTorch refuses too, raises PyTorch's kind of error with our sentence.
    """
    if looks_on() is not None:
        return unseen(_computed, operator, compute, theirs, arguments, settings, quick)
    return _computed(operator, compute, theirs, arguments, settings, quick)


def _computed(
    operator: str,
    compute: Callable[..., Any],
    theirs: Callable[[], Any],
    arguments: tuple[Any, ...],
    settings: Settings | None,
    quick: Callable[[], Any] | None,
) -> Any:
    if runtime.forked:
        counting.left(operator, runtime.FORKED)
        return theirs()
    try:
        result = compute(*arguments, settings=settings or DEFAULT)
    except Exception as error:
        return _declined(error, operator, theirs, quick)
    counting.ours(operator)
    return result


def _declined(
    error: Exception, operator: str, theirs: Callable[[], Any], quick: Callable[[], Any] | None = None
) -> Any:
    """The result of ``theirs()`` with the reason counted; errors that are no reason to leave a call are raised."""
    if isinstance(error, InvalidArgument | InvalidProblem):
        try:
            result = theirs()
        except Exception as refused:
            kind = type(refused) if type(refused) in (RuntimeError, ValueError, IndexError, TypeError) else RuntimeError
            raise kind(str(error)) from refused
        counting.left(operator, str(error))
        return result
    if isinstance(error, Frozen | InvalidPolicy) or not isinstance(error, Fallback | ConvDispatchError):
        raise error
    if isinstance(error, Compiling):
        counting.compiling()
        answer = None if quick is None else quick()
        if answer is not None:
            return answer
    else:
        counting.left(operator, str(error).splitlines()[0])
    if isinstance(error, Fallback) and error.again is not None:
        native.leave(functools.partial(error.again, operator))
    return theirs()
