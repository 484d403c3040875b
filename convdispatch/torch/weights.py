"""Which weights are constant, and until when: their packed forms are kept with the tensor, by its version counter."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..selection.prepared import Constant

__all__ = ["promise"]


class _Seen:
    """A tensor that served as weights, and its packed forms; those do not hold the tensor."""

    __slots__ = ("address", "packed", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, forget: Any) -> None:
        self.tensor = weakref.ref(tensor, forget)
        self.version, self.address = tensor._version, tensor.data_ptr()
        self.packed = Constant(None) if isinstance(tensor, torch.nn.Parameter) else None


_seen: dict[int, _Seen] = {}


def promise(weight: torch.Tensor) -> Constant | None:
    """What keeps packed forms of ``weight``, or None where it may be another tensor, or hold other values, next time.

    Constant are a frozen Parameter (``requires_grad_(False)``) and, in ``torch.inference_mode``, any Parameter at once
    and another tensor when it comes a second time unchanged. PyTorch's version counter and the address tell a change;
    what writes past both (``weight.data.mul_()``, a NumPy view) must be followed by an operation on the tensor itself.
    Under ``no_grad`` alone nothing is taken for constant: that is where such writes are made.
    """
    if not torch.is_inference_mode_enabled() and (
        weight.requires_grad or type(weight) is torch.Tensor or not isinstance(weight, torch.nn.Parameter)
    ):
        return None
    if weight.is_inference():
        return None
    key = id(weight)
    seen = _seen.get(key)
    if seen is None or seen.tensor() is not weight:
        seen = _seen[key] = _Seen(weight, lambda _: _seen.pop(key, None))
        return seen.packed
    if seen.version != weight._version or seen.address != weight.data_ptr():
        seen.version, seen.address, seen.packed = weight._version, weight.data_ptr(), Constant(None)
    elif seen.packed is None:
        seen.packed = Constant(None)
    return seen.packed
