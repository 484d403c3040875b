"""Registers the native call path below Python, and passes it what Python decided; see ``device/native``.

A call that it does not know comes to the operators in Python, and what these computed it by is offered to it under that
call's key: sizes, strides, dtypes, the operator's arguments, PyTorch's switches. The next call like it is launched
without Python. What is no plain launch on contiguous, aligned memory stays Python's, and so does everything under a
``policy(...)``.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ...api.errors import ConvDispatchWarning
from ...api.policy import DEFAULT
from ...api.problem import EXTRAS
from ...calls.arrays.stream_arrays import ALIGNMENT
from ...calls.call import Call
from ...calls.framework.sizes import MEETINGS
from ...device import runtime
from ...device.cuda.stream import CudaPlace
from ...device.native import loading
from .. import counting, settings
from ..eager.bias_gradient import kernels_of
from ..weights import still

_X, _W, _GRAD, _BIAS, _RESIDUAL, _NORM, _ACTIVATED, _OUT, _SUMS, _NONE = range(10)
"""Where an operand of a plan comes from: an argument of the operator, a new result, or nowhere."""
_EXTRAS = dict(zip(EXTRAS, (_BIAS, _RESIDUAL, _NORM, _X, _SUMS), strict=True))
_SOURCES = {
    ("forward", False): (_X, _W, _OUT),
    ("forward", True): (_OUT, _W, _X),
    ("data", False): (_OUT, _W, _GRAD),
    ("data", True): (_GRAD, _W, _OUT),
    ("weights", False): (_X, _OUT, _GRAD),
    ("weights", True): (_GRAD, _OUT, _X),
    ("activated", False): (_ACTIVATED, _OUT, _GRAD),
}
"""Where x, w and y of a problem come from, by part and whether the convolution is transposed; "activated" is the
weights' gradient of a convolution that read what a norm and an activation left."""
_C: Any = torch._C
_settings = settings.DEFAULT
_numbers: dict[settings.Settings, int] = {settings.DEFAULT: 0}
"""A number for each set of arguments that ``enable`` was called with; it is part of the native path's cache key."""
ATEN = ("aten::convolution", "aten::convolution_backward")
_OPERATORS = (
    *ATEN,
    "convdispatch::fused_convolution",
    "convdispatch::convolution",
    "convdispatch::convolution_backward",
    "convdispatch::normed_convolution",
    "convdispatch::normed_convolution_backward",
    "convdispatch::channel_products",
)
"""The operators that have a kernel on the native path, by its numbers; those on a CPU follow in the same order."""
_computes: list[Any] = [None] * 2 * len(_OPERATORS)
"""The Python functions that the native path calls if it has no decision, by those numbers."""
HOST = {"cpu": True, "cuda": False}
"""The device types that have a native call path, and whether each is a CPU's."""
_installed: dict[tuple[str, str], bool] = {}
"""Whether a kernel of the native path was registered, by operator and dispatch key."""
_lock = threading.Lock()


class _Absent:
    """Takes the native module's place where there is none: whatever is told it has no effect, and its counts are 0."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


_launcher: Any = _Absent()


class Raised(BaseException):
    """The class that PyTorch's bindings raise for a Python exception: constructed from its message, it is that
    exception.

    They know an exception's class and words alone.
    """

    _errors: dict[str, BaseException] = {}  # noqa: RUF012
    _most = 64

    def __new__(cls, words: str) -> Any:
        """Return the exception that was stored under a message."""
        return cls._errors.pop(words, None) or RuntimeError(words)

    @classmethod
    def keep(cls, error: BaseException) -> str:
        """Store an exception; returns the message under which ``Raised`` finds it."""
        while len(cls._errors) >= cls._most:
            cls._errors.pop(next(iter(cls._errors)))
        words = f"{type(error).__name__}: {error} [{id(error):x}]"
        cls._errors[words] = error
        return words


def install(operator: str, key: str, compute: Callable[..., Any], host: bool) -> bool:
    """Register the native path's kernel of an operator on a dispatch key; returns whether that succeeded. The native
    path calls ``compute`` if it has no decision. ``host``: for tensors on a CPU."""
    global _launcher
    number = _number(operator, host)
    _computes[number] = compute
    found = _module(host)
    if found is None:
        return False
    try:
        _ask(found)
        found.install(number, key)
    except RuntimeError as error:  # PyTorch refused the kernel, or an interface has changed
        warnings.warn(f"convolutions on {key} go by Python: {error}", ConvDispatchWarning, stacklevel=2)
        found.uninstall(number)
        return False
    found.under(_numbers[_settings])
    if not _launcher:
        counting.also(found.counts)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: runtime.forked and pause(True))
    _launcher = found
    _installed[operator, key] = True
    return True


def _number(operator: str, host: bool) -> int:
    return _OPERATORS.index(operator) + host * len(_OPERATORS)


def installed(operator: str, kind: str, compute: Callable[..., Any]) -> bool:
    """Whether the native path has a kernel of an operator of convdispatch for a device type: the first call registers
    it, for good."""
    key = kind.upper()
    state = _installed.get((operator, key))
    if state is None and kind in HOST:
        with _lock:
            state = _installed.get((operator, key))
            if state is None:
                state = _installed[operator, key] = install(operator, key, compute, HOST[kind])
    return bool(state)


def _module(host: bool) -> Any:
    if host:
        return loading.host_launcher()
    return None if CudaPlace.blocking else loading.launcher()


def _ask(found: Any) -> None:
    always = _records, torch.is_inference_mode_enabled, torch.is_grad_enabled
    switches = (
        *(*always, _C._get_cudnn_allow_tf32, _C._get_deterministic_algorithms),
        *(_C._get_cudnn_deterministic, _C._get_cudnn_benchmark),
    )
    on_host = *always, _rounds, _C._get_deterministic_algorithms, _C._get_cudnn_benchmark
    found.ask(DEFAULT, switches, on_host, tuple(_computes), Raised, torch.Tensor)
    found.further(MEETINGS)


def _records() -> bool:
    """Whether Python must see each call: ``torch.jit.trace`` records it, or it may have a forward-mode tangent."""
    return forward_ad._current_level >= 0 or _C._is_tracing()  # type: ignore[no-any-return]


def _rounds() -> bool:
    return _C._get_float32_matmul_precision() != "highest"  # type: ignore[no-any-return]


def uninstall() -> None:
    """Unregister the native path from aten's operators; its decisions apply again after the next ``install``."""
    for operator in ATEN:
        for host in (False, True):
            _launcher.uninstall(_number(operator, host))


def under(given: settings.Settings) -> None:
    """Set the arguments of ``enable`` that decide calls from now on. Decisions under other settings stay cached, for
    when those are set again: a script may enter ``enable()`` at each step."""
    global _settings
    _settings = given
    _launcher.under(_numbers.setdefault(given, len(_numbers)))


def runs(key: str) -> bool:
    """Whether the native path was registered on a dispatch key for aten's operators in this process."""
    return (ATEN[0], key) in _installed


def forget() -> None:
    """Drop all decisions of the native path, so that it asks Python again."""
    _launcher.forget()


def drop(call: Any) -> None:
    """Drop the decisions for a call that the cache no longer holds, so that the native path asks Python again."""
    if program := getattr(call, "native", None):
        _launcher.drop(program)


def used(call: Any) -> int:
    """The sequence number of a call's last run on the native path; 0 if it did not run since the last query."""
    program = getattr(call, "native", None)
    return _launcher.used(program) if program else 0


def pause(on: bool) -> None:
    """Send all calls to Python if ``on``, for watchers; in a forked child without OpenCL's threads they always do."""
    _launcher.pause(on or runtime.forked)


def decline() -> None:
    """Leave the current call to Python."""
    _launcher.offer([], [], None, 0, False)


def leave(again: Callable[[], bool]) -> None:
    """Leave the current call to PyTorch's own kernel, and also later calls like it for which ``again()`` returns
    True."""
    _launcher.offer([], [], again, 0, False)


def know(alive: Callable[[], bool]) -> None:
    """Leave further sizes of the current call's layer to PyTorch until they were encountered often enough, while its
    weights are ``alive()``."""
    _launcher.know(alive)


def met() -> int:
    """How often the size of the current call was encountered, if the native path counted it; else 0."""
    return _launcher.met()  # type: ignore[no-any-return]


def learn(
    parts: Sequence[tuple[str, Any, int]],
    transposed: bool,
    tensors: Sequence[torch.Tensor | None],
    weights: torch.Tensor,
    constant: Any,
    with_sums: bool = False,
) -> None:
    """Offer the native path what computed the current call: (part, cached call, index of its result) for each part. A
    call is left to Python if one of its parts is no plain launch.

    ``tensors`` are input, weights, bias, residual and table, or gradient, input, weights, table, residual and what the
    convolution read; those behind the last one that is there may be left out. ``with_sums``: the third result is the
    sum of the first tensor.
    """
    if not _launcher:
        return None
    steps: list[tuple[Any, ...]] = []
    holds, packed = None, 0
    for part, call, result in parts:
        program = _program(call)
        if program is None or call.form != parts[0][1].form:
            return decline()
        packs = constant is not None and part != "weights" and call.packs
        if packs:
            packed, holds = constant.addresses.get(call.packed_key, 0), still(weights)
            if not packed or holds is None:
                return decline()
            packed = getattr(packed, "svm_ptr", packed)
        extras = [_EXTRAS[name] if name in call.problem.extras else _NONE for name in EXTRAS[: len(call.sizes) - 3]]
        steps.append((program, (*_SOURCES[part, transposed], *extras), result, packs))
    laid = _laid(steps, parts, tensors)
    if laid is None:
        return decline()
    grad = tensors[0]
    # The kernels of the bias gradient read the gradient itself, not a copy that was made for the convolution.
    as_it_lies = all(place != _GRAD for place, _ in laid)
    ours = kernels_of(grad) if with_sums and grad is not None and as_it_lies else None
    if ours is not None and grad is not None:
        program = ours.launches.program(_launcher, ours.name, (grad.shape[1],), (1,))
        if program is None:
            return decline()
        steps.append((program, (_GRAD, _OUT), 2, False))
    _launcher.offer(steps, laid, holds, packed, with_sums and ours is None)
    return None


def _laid(
    steps: Sequence[tuple[Any, ...]], parts: Sequence[tuple[str, Any, int]], tensors: Sequence[torch.Tensor | None]
) -> list[tuple[int, tuple[int, ...]]] | None:
    """The operands that kernels read as copies with other strides, and those strides; None if an operand's address is
    not aligned for the kernels' vector loads."""
    read = {source for _, sources, _, packs in steps for source in sources if source != _W or not packs}
    forward = parts and parts[0][0] == "forward"
    places = (_X, _W, _BIAS, _RESIDUAL, _NORM) if forward else (_GRAD, _X, _W, _NORM, _RESIDUAL, _ACTIVATED)
    found = []
    for place, tensor in zip(places, tensors, strict=False):
        if tensor is None or place not in read:
            continue
        form = torch.contiguous_format if tensor.ndim < 3 else parts[0][1].form
        if not tensor.is_contiguous(memory_format=form):
            found.append((place, torch.empty(tensor.shape, device="meta", memory_format=form).stride()))
        elif tensor.data_ptr() % ALIGNMENT:
            return None
    return found


def _program(call: Any) -> Any:
    """A cached call's launches in the format of the native path, built once; None where Python must run the call."""
    if not isinstance(call, Call) or call.launches is None:
        return None
    if not (call.backward_ready or not torch.is_grad_enabled()):
        return None
    return call.program(_launcher)
