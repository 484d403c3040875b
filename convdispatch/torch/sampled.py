"""Checks whether a CPU tensor still has its values, by a sample of its memory. A check takes about 0.5 µs, and 20 µs if
none of that memory is in the caches; the native module, which loads all of it in parallel, takes a fifth of that.

For writes that neither PyTorch's version counter nor a read of a parameter's ``.data`` (``data_reads``) tells: those
of a view that somebody keeps, NumPy's say. What a training loop writes that way is found for certain:

- all values, as a decay, a mean of models, a step of an optimizer or new values write them;
- what a bound changes (``clamp_``): the greatest and the least value are in the sample;
- what pruning by size changes: the least value other than zero is in it;
- what a bound on norms changes (``renorm_``), or pruning of the weakest rows: of the rows along the first axis, the
  strongest's and the weakest's greatest value are in it;
- any write at all to a tensor of up to 4 KiB.

Of other writes to a larger tensor the sample sees those that touch one of its runs, which lie evenly but not in line
with rows: 1 element in 100 changed is missed once in some thousand times. A write to a few elements elsewhere is not
seen; an operation on the tensor itself (``with torch.no_grad(): p[0, 0] = 1``) is.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..device.native import loading

_WHOLE = 4096
"""A tensor of up to this many bytes is compared completely."""
_RUNS, _RUN = 48, 64
"""The number of pieces that are compared of a larger tensor, and the bytes of each piece: one cache line."""
_FLOATS = {torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16}


def version_of(tensor: torch.Tensor) -> int:
    """PyTorch's version counter of a tensor; 0 for one that was made in ``torch.inference_mode``, which has none."""
    return 0 if tensor.is_inference() else tensor._version


class Sample:
    """A sample of a tensor's memory and its values; valid only while the tensor has that memory."""

    __slots__ = ("_indices", "addresses", "holds", "memory", "sizes", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        unit, size = tensor.element_size(), tensor.numel() * tensor.element_size()
        self.memory = np.frombuffer((ctypes.c_char * size).from_address(tensor.data_ptr()), np.uint8)
        starts, run, elements = np.zeros(1, np.int64), size, []
        if size > _WHOLE:
            # Rows of weights have even numbers of elements: a step of an odd number of cache lines hits other columns
            # in each.
            step = max(_RUN, (size - _RUN) // (_RUNS * _RUN) * _RUN)
            step -= _RUN if step > _RUN and step // _RUN % 2 == 0 else 0
            starts, run = np.arange(0, size - _RUN + 1, step), _RUN
            if tensor.is_floating_point():
                elements = [unit * index for index in _extremes(_numbers(self.memory, tensor.dtype), tensor.shape[0])]
        self.sizes = np.repeat(np.array([run, unit], np.uint32), [len(starts), len(elements)])
        starts = np.concatenate([starts, np.array(elements, np.int64)])
        self.addresses = starts.astype(np.uint64) + np.uint64(tensor.data_ptr())
        self._indices = np.concatenate(list(map(np.arange, starts, starts + self.sizes)))
        self.values = self.memory[self._indices].tobytes()
        self.holds = together([self])
        """A function that returns whether the sampled memory still has its values."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Sample | None:
        """A sample of a tensor; None if it is not dense in host memory, because writes to it cannot be detected."""
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.ndim == 0 or tensor.is_complex():
            return None
        forms = [torch.contiguous_format, {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)]
        dense = any(form is not None and tensor.is_contiguous(memory_format=form) for form in forms)
        return cls(tensor) if dense and tensor.numel() else None


def together(samples: Sequence[Sample]) -> Callable[[], bool]:
    """A function that returns whether all samples still have their values."""
    native = loading.module()
    if native is None:
        parts = [(each.memory, each._indices, each.values) for each in samples]
        return lambda: all(memory[indices].tobytes() == values for memory, indices, values in parts)
    addresses, sizes = (b"".join(getattr(each, name).tobytes() for each in samples) for name in ("addresses", "sizes"))
    return functools.partial(native.hold, native.pieces(addresses, sizes, b"".join(each.values for each in samples)))


def _numbers(memory: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The values in a dtype that NumPy compares fast."""
    if dtype is torch.bfloat16:
        return (memory.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = memory.view(_FLOATS[dtype])
    return values.astype(np.float32) if dtype is torch.float16 else values


def _extremes(values: np.ndarray, rows: int) -> list[int]:
    """The indices of the values that a clamp or pruning changes first."""
    sizes = np.abs(values)
    smallest = int(sizes.argmin())
    if sizes[smallest] == 0:
        smallest = int(np.where(sizes > 0, sizes, np.inf).argmin())
    indices = {int(values.argmax()), int(values.argmin()), smallest}
    by_row = sizes.reshape(rows, -1)
    norms = np.einsum("ij,ij->i", by_row, by_row)
    for row in (int(norms.argmax()), int(np.where(norms > 0, norms, np.inf).argmin())):
        indices.add(row * by_row.shape[1] + int(by_row[row].argmax()))
    return sorted(indices)
