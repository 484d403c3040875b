"""Puts the native call path below Python on CUDA, and tells it what Python decided; see ``device/native``.

A call that it does not know comes to the operators in Python, and what these computed it by is offered to it under that
call's key: sizes, strides, dtypes, the operator's arguments, PyTorch's switches. The next call like it is launched
without Python. What is no plain launch on contiguous, aligned memory stays Python's, and so does everything under a
``policy(...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...api.policy import DEFAULT, ask_policy
from ...device.cuda.stream import BLOCKED
from ...device.native import loading
from .. import counting
from ..eager.bias_gradient import kernels_of
from ..eager.cuda_stream import StreamCall
from ..weights import still

__all__ = ["decline", "forget", "install", "learn", "pause", "runs", "uninstall"]

_X, _W, _GRAD, _BIAS, _OUT, _NONE = range(6)
"""Where an operand of a plan comes from."""
_SOURCES = {
    ("forward", False): (_X, _W, _OUT),
    ("forward", True): (_OUT, _W, _X),
    ("data", False): (_OUT, _W, _GRAD),
    ("data", True): (_GRAD, _W, _OUT),
    ("weights", False): (_X, _OUT, _GRAD),
    ("weights", True): (_GRAD, _OUT, _X),
}
"""By part and whether the convolution is transposed: x, w and y of its problem."""
_ALIGNMENT = 16
_C: Any = torch._C
_launcher: Any = None


def install(key: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> bool:
    """Whether aten's operators on a dispatch key are the native path's from now on, which asks these where it must."""
    global _launcher
    found = None if BLOCKED else loading.launcher(loading.DRIVER)
    if found is None:
        return False
    handles = (_C._aoti.alloc_tensor_by_stealing_from_void_ptr, _C._aoti.unsafe_alloc_void_ptr_from_tensor)
    switches = (
        *(_C._get_cudnn_allow_tf32, _C._get_deterministic_algorithms),
        *(_C._get_cudnn_deterministic, _C._get_cudnn_benchmark),
    )
    state = (_C._is_tracing, torch.is_inference_mode_enabled, torch.is_grad_enabled)
    found.ask(ask_policy, DEFAULT, *state, switches, forward, backward, *handles)
    found.install(key)
    if _launcher is None:
        counting.also(found.counts)
    _launcher = found
    return True


def uninstall() -> None:
    """Give the operators back."""
    if _launcher is not None:
        _launcher.uninstall()
        _launcher.forget()


def runs() -> bool:
    """Whether it was installed in this process."""
    return _launcher is not None


def forget() -> None:
    """Ask Python anew for everything."""
    if _launcher is not None:
        _launcher.forget()


def pause(on: bool) -> None:
    """Whether all calls go to Python, for those who watch them."""
    if _launcher is not None:
        _launcher.pause(on)


def decline() -> None:
    """The call under way stays Python's."""
    if _launcher is not None:
        _launcher.offer([], None, 0, False)


def learn(
    parts: Sequence[tuple[str, Any, int]],
    transposed: bool,
    tensors: Sequence[torch.Tensor | None],
    weights: torch.Tensor,
    constant: Any,
    with_sums: bool = False,
) -> None:
    """Offer what computed the call under way: (part, its kept call, the place of its result) each, for operands
    ``tensors``; ``with_sums``: its third result is the sum of the first tensor, by PyTorch's own."""
    if _launcher is None:
        return
    steps, holds, packed = [], None, 0
    for part, call, result in parts:
        program = _program(call)
        if program is None or not all(each is None or _lies_plainly(each, call.form) for each in tensors):
            return decline()
        packs = constant is not None and part != "weights" and call.packs
        if packs:
            packed = constant.addresses.get(call.key, 0)
            holds = still(weights)
            if not packed or holds is None:
                return decline()
        bias = part == "forward" and tensors[2] is not None
        sources = (*_SOURCES[part, transposed], _BIAS if bias else _NONE, _NONE)
        steps.append((program, sources, result, packs))
    ours = kernels_of(tensors[0]) if with_sums and tensors[0] is not None else None
    if ours is not None:
        sizes = (tensors[0].shape[1],)  # type: ignore[union-attr]
        program = ours.launches.program(_launcher, ours.name, ours.context, sizes, (1,))
        if program is None:
            return decline()
        steps.append((program, (_GRAD, _OUT), 2, False))
    _launcher.offer(steps, holds, packed, with_sums and ours is None)


def _program(call: Any) -> Any:
    """A kept call's launches as the native path takes them, made once; None where Python must run it."""
    if type(call) is not StreamCall or call.launches is None:
        return None
    if not (call.backward_ready or not torch.is_grad_enabled()):
        return None
    if call.native is None:
        call.native = call.launches.program(_launcher, call.name, call.context, call.shape, call.strides) or False
    return call.native or None


def _lies_plainly(tensor: torch.Tensor, form: Any) -> bool:
    if tensor.ndim == 1:
        form = torch.contiguous_format
    return tensor.is_contiguous(memory_format=form) and tensor.data_ptr() % _ALIGNMENT == 0
