"""The gradient of a bias: the sum of the result's gradient over all axes but the channels."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ...api.errors import BuildFailed, ConvDispatchError, Frozen
from ...calls.arrays.known_libraries import library_of
from ...calls.arrays.stream_arrays import ALIGNMENT
from ...calls.framework.fallback import Fallback
from ...device import runtime
from ...device.commands.recording import Recording, Slot
from ...device.executable import Executable
from ...device.places.stream import Unlaunchable
from ...device.programs.kernels import Programs, without_numbers
from ...selection import dispatch
from .. import ranks
from ..geometry import DTYPES, FORMATS
from .planning import LeftToPyTorch
from .stream_tensors import refuse_capture, stream_of

_LEAST = 1 << 20
"""Below this many bytes PyTorch's one launch is as fast as our two."""
_cache = Programs(family=without_numbers)
dispatch.on_forget(_cache.drop)


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """Sum ``grad`` ``[mb, c, ...]`` to ``[c]``, in grad's dtype, 16 bits summed in float32; results are reproducible.

    On CUDA, channels last, by kernels of ours, in about the time of a read; else, and where these cannot be had, by
    PyTorch's own.
    """
    if grad.is_cuda and _takes(grad):
        with contextlib.suppress(Frozen, Fallback):
            sums = _made(grad, making=not ranks.many())
            if sums is not None:
                out = grad.new_empty(grad.shape[1])
                sums(grad, out)
                return out
    return grad.sum((0, *range(2, grad.ndim)))


def kernels_of(grad: torch.Tensor) -> Any:
    """The cached kernels on (grad, sums) that ``bias_gradient`` just ran for ``grad``; None where PyTorch's sum ran."""
    kernels = _cache.get(_key(grad)) if grad.is_cuda and _takes(grad) else None
    return kernels if type(kernels) is _Sums else None


def make_ready(grad: torch.Tensor) -> None:
    """Build what ``bias_gradient`` runs for tensors like ``grad``, before a backward in which ranks wait for each
    other."""
    if grad.is_cuda and _takes(grad):
        with contextlib.suppress(ConvDispatchError, Fallback):  # the backward itself raises the error
            _made(grad)


def _takes(grad: torch.Tensor) -> bool:
    form = FORMATS.get(grad.ndim)
    if form is None or grad.dtype is torch.float64 or grad.dtype not in DTYPES or grad.nbytes < _LEAST:
        return False
    return grad.shape[1] * grad.itemsize % 16 == 0 and grad.is_contiguous(memory_format=form)


def _key(grad: torch.Tensor) -> tuple[Any, ...]:
    return grad.shape, grad.dtype, grad.device


def _made(grad: torch.Tensor, making: bool = True) -> Any:
    """The cached kernels, or a LeftToPyTorch; None if there are none and ``making`` is False. Raises Fallback for this
    one call."""
    key = _key(grad)
    kernels = _cache.get(key)
    return _cache.make(key, lambda: _sums(grad)) if kernels is None and making else kernels


def _sums(grad: torch.Tensor) -> _Sums | LeftToPyTorch:
    try:
        return _Sums(grad)
    except Fallback as left:
        if not left.lasting:
            raise
        return LeftToPyTorch(str(left))


class _Sums:
    """The recorded kernels for gradients like one: ``sums(grad, out)`` launches them on the tensors' stream.

    Nothing waits, and scratch memory comes from PyTorch's caching allocator, so a graph captures a call that was made
    before.
    """

    name = "the sums of channels"

    def __init__(self, grad: torch.Tensor) -> None:
        """Raises Fallback where the kernels cannot be had."""
        from ...nn.channel_sums import channel_sums  # imported here because importing nn takes 0.2 s

        channels, stream = grad.shape[1], stream_of(grad)
        self.number, self.library = grad.get_device(), library_of(torch.Tensor)
        refuse_capture(stream, self.name)
        with stream.current():
            recording = Recording(runtime.queue(stream.device))
            slots = [Slot(size, persistent=True) for size in (grad.nbytes, channels * grad.itemsize)]
            try:
                rows = grad.numel() // channels
                channel_sums(stream.context, dtype=DTYPES[grad.dtype], rows=rows, channels=channels)(recording, *slots)
                self.launches: Any = Executable.of(recording, slots, [1]).bind(stream.place)
            except (BuildFailed, Unlaunchable) as error:
                why = str(error).splitlines()[0]
                raise Fallback(f"{self.name} cannot run on a {stream.kind.upper()} stream: {why}") from None

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch the kernels. Raises Fallback for memory whose address is no multiple of 16 bytes."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        if any(address % ALIGNMENT for address in addresses):
            raise Fallback("a tensor begins at no multiple of 16 bytes", lasting=False)
        stream: Any = self.library.stream(tensors[0], self.number)
        stream.place.recent.append(self.name)
        # PyTorch may report the device's CUDA context as current in this thread before it is.
        if not self.library.is_current(stream) or not self.launches.run(stream, [*addresses]):
            with stream.current():
                if not self.launches.run(stream, addresses):
                    raise Fallback("the device has no memory left for scratch memory", lasting=False)
        stream.check()
