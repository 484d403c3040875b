"""Whether a tensor still holds what was packed of it.

PyTorch counts writes to a tensor, but not those through ``parameter.data`` (WGAN's clipping, moving averages, older
optimizers), through NumPy views, or into a buffer of which parameters are slices. So three more things are looked at:
whether ``.data`` of a parameter was handed out since, on the CPU a sample of its values, and, by the caller, whether it
took part in a forward with gradients. A look takes under a microsecond.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

__all__ = ["Watch"]

_SPREAD, _EXTREMES = 128, 16
"""Values of a sample: spread over the tensor, and its largest, which clipping changes first."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_read: dict[int, int] = {}
"""By the id of a parameter that is watched: how often its ``.data`` was handed out."""
_alias: dict[int, Any] = {}
"""By the same: the tensor that was handed out last, held weakly. While somebody has it, it may be written any time."""
_DATA: Any = torch._C.TensorBase.data  # type: ignore[attr-defined]


def _hand_out(parameter: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _DATA.__get__(parameter)
    key = id(parameter)
    if key in _read:
        _read[key] += 1
        _alias[key] = weakref.ref(found)
    return found


def _replace(parameter: torch.Tensor, data: torch.Tensor) -> None:
    _DATA.__set__(parameter, data)


def _watch_data() -> None:
    """Let parameters tell when ``.data`` is read: their class gets a property over PyTorch's own."""
    if "data" not in torch.nn.Parameter.__dict__:
        torch.nn.Parameter.data = property(_hand_out, _replace, doc=_DATA.__doc__)  # type: ignore[assignment,misc]


def _forget(key: int) -> None:
    _read.pop(key, None)
    _alias.pop(key, None)


class Watch:
    """A tensor as it is now; ``changed(tensor)`` tells whether it may hold something else. Does not hold the tensor."""

    __slots__ = ("_address", "_flat", "_key", "_places", "_reads", "_sample", "_shape", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._version, self._address = tensor._version, tensor.data_ptr()
        self._shape = tensor.shape
        self._key = self._reads = -1
        if isinstance(tensor, torch.nn.Parameter):
            _watch_data()
            self._key = id(tensor)
            if self._key not in _read:
                weakref.finalize(tensor, _forget, self._key)
            self._reads = _read.setdefault(self._key, 0)
        self._flat = _flat(tensor)
        if self._flat is not None:
            self._places = _places(self._flat, tensor)
            self._sample = self._flat[self._places].tobytes()

    def changed(self, tensor: torch.Tensor) -> bool:
        """Whether a write was seen, or may come unseen."""
        if tensor._version != self._version or tensor.data_ptr() != self._address or tensor.shape != self._shape:
            return True
        key = self._key
        if key != -1:
            if _read.get(key) != self._reads:
                return True
            alias = _alias.get(key)
            if alias is not None and alias() is not None:
                return True
        flat = self._flat
        return flat is not None and flat[self._places].tobytes() != self._sample


def _flat(tensor: torch.Tensor) -> np.ndarray | None:
    """The bits of a tensor on the host, in the order of its memory; None of another, or one with gaps."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.numel() or tensor.is_conj():
        return None
    bits = _INTEGERS.get(tensor.element_size())
    plain = tensor.detach()
    if bits is None or type(plain) not in (torch.Tensor, torch.nn.Parameter):
        return None
    try:
        order = sorted(range(plain.ndim), key=lambda axis: plain.stride(axis), reverse=True)
        if not plain.permute(order).is_contiguous():
            return None
        return plain.permute(order).reshape(-1).view(bits).numpy()
    except (RuntimeError, TypeError):  # of a tensor that stands for one
        return None


def _places(flat: np.ndarray, tensor: torch.Tensor) -> np.ndarray:
    """Where a sample is taken: everywhere of a small tensor."""
    if flat.size <= 2 * _SPREAD:
        return np.arange(flat.size)
    # A step that shares no factor with sizes of powers of two, so that samples move through all axes.
    spread = np.arange(_SPREAD) * (flat.size - 1) // (_SPREAD - 1)
    spread = np.minimum(spread + np.arange(_SPREAD) % 7, flat.size - 1)
    if not tensor.is_floating_point():
        return np.unique(spread)
    order = sorted(range(tensor.ndim), key=lambda axis: tensor.stride(axis), reverse=True)
    size = tensor.detach().permute(order).reshape(-1).abs()
    largest = torch.topk(size, _EXTREMES).indices.numpy()
    return np.unique(np.concatenate([spread, largest]))
