"""Which weights are constant, and until when: their packed forms are kept until something tells of a write."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..selection.prepared import Constant
from .staleness import Watch

__all__ = ["promise"]


class _Seen:
    """A tensor that served as weights, and its packed forms; those do not hold the tensor."""

    __slots__ = ("packed", "tensor", "watch")

    def __init__(self, tensor: torch.Tensor, forget: Any) -> None:
        self.tensor = weakref.ref(tensor, forget)
        self.watch = Watch(tensor)
        self.packed = Constant(None) if isinstance(tensor, torch.nn.Parameter) else None


_seen: dict[int, _Seen] = {}


def promise(weight: torch.Tensor) -> Constant | None:
    """What keeps packed forms of ``weight``, or None where it may be another tensor, or hold other values, next time.

    Constant are a frozen Parameter (``requires_grad_(False)``) and, in ``torch.inference_mode``, any Parameter at once
    and another tensor when it comes a second time unchanged. ``staleness`` tells a change; weights that took part in a
    forward with gradients meanwhile are packed again, since training writes to them.
    """
    if not torch.is_inference_mode_enabled() and (
        weight.requires_grad or type(weight) is torch.Tensor or not isinstance(weight, torch.nn.Parameter)
    ):
        if weight.requires_grad and _seen and torch.is_grad_enabled():
            _seen.pop(id(weight), None)
        return None
    if weight.is_inference():
        return None
    key = id(weight)
    seen = _seen.get(key)
    if seen is None or seen.tensor() is not weight:
        seen = _seen[key] = _Seen(weight, lambda _: _seen.pop(key, None))
        return seen.packed
    if seen.watch.changed(weight):
        seen.watch, seen.packed = Watch(weight), Constant(None)
    elif seen.packed is None:
        seen.packed = Constant(None)
    return seen.packed
