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
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def version_of(tensor: torch.Tensor) -> int:
    """PyTorch's version counter of a tensor; 0 for one that was made in ``torch.inference_mode``, which has none."""
    return 0 if tensor.is_inference() else tensor._version


class Sample:
    """A sample of a tensor's memory and its values; valid only while the tensor has that memory."""

    __slots__ = ("_held", "_places", "_runs", "_words", "holds", "pieces")

    def __init__(self, tensor: torch.Tensor) -> None:
        unit, size = tensor.element_size(), tensor.numel() * tensor.element_size()
        memory = np.frombuffer((ctypes.c_char * size).from_address(tensor.data_ptr()), np.uint8)
        self._runs, indices = memory, []
        if size > _WHOLE:
            # Rows of weights have even numbers of elements: a step of an odd number of cache lines hits other columns
            # in each.
            step = max(_RUN, (size - _RUN) // (_RUNS * _RUN) * _RUN)
            step -= _RUN if step > _RUN and step // _RUN % 2 == 0 else 0
            self._runs = np.lib.stride_tricks.as_strided(memory, ((size - _RUN) // step + 1, _RUN), (step, 1))
            if tensor.is_floating_point():
                indices = _extremes(_numbers(memory, tensor.dtype), tensor.shape[0])
        self._held = self._runs.tobytes()
        self._words = memoryview(memory.view(_WORDS[unit])) if indices else None
        self._places = [(index, self._words[index]) for index in indices] if self._words is not None else []
        self.pieces = self._pieces(memory, unit)
        """The addresses and sizes of all that is compared, and its bytes."""
        self.holds: Callable[[], bool] = _natively([self]) or self._holds
        """A function that returns whether the sampled memory still has its values."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Sample | None:
        """A sample of a tensor; None if it is not dense in host memory, because writes to it cannot be detected."""
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.ndim == 0 or tensor.is_complex():
            return None
        forms = [torch.contiguous_format, {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)]
        dense = any(form is not None and tensor.is_contiguous(memory_format=form) for form in forms)
        return cls(tensor) if dense and tensor.numel() else None

    def _pieces(self, memory: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray, bytes]:
        begin = memory.__array_interface__["data"][0]
        rows, step = (self._runs.shape[0], self._runs.strides[0]) if self._runs.ndim == 2 else (1, 0)
        runs = begin + step * np.arange(rows, dtype=np.uint64)
        addresses = begin + unit * np.array([index for index, _ in self._places], np.uint64)
        sizes = np.repeat(np.array([self._runs.shape[-1], unit], np.uint32), [rows, len(addresses)])
        values = [memory[index * unit : (index + 1) * unit].tobytes() for index, _ in self._places]
        return np.concatenate([runs, addresses]), sizes, b"".join([self._held, *values])

    def _holds(self) -> bool:
        memory = self._words
        for index, value in self._places:
            if memory[index] != value:  # type: ignore[index]
                return False
        return self._runs.tobytes() == self._held


def together(samples: Sequence[Sample]) -> Callable[[], bool]:
    """A function that returns whether all samples still have their values."""
    return _natively(samples) or (lambda: all(sample.holds() for sample in samples))


def _natively(samples: Sequence[Sample]) -> Callable[[], bool] | None:
    """The same function by the native module; None if that is not available."""
    native = loading.module()
    if native is None:
        return None
    addresses, sizes, values = ([sample.pieces[part] for sample in samples] for part in range(3))
    packed_arrays = (np.concatenate(each).tobytes() if each else b"" for each in (addresses, sizes))
    return functools.partial(native.hold, native.pieces(*packed_arrays, b"".join(values)))


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
