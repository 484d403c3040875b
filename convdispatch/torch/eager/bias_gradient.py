"""The gradient of a bias: the sum of the result's gradient over all axes but the channels."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
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
    return kernels if type(kernels) is Launched else None


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
    """The cached kernels; None if there are none and ``making`` is False."""
    key = _key(grad)
    kernels = _cache.get(key)
    if kernels is None and making:
        from ...nn.channel_sums import channel_sums  # imported here because importing nn takes 0.2 s

        channels, dtype = grad.shape[1], DTYPES[grad.dtype]
        rows = grad.numel() // channels
        sizes = [grad.nbytes, channels * grad.itemsize]
        make = functools.partial(channel_sums, dtype=dtype, rows=rows, channels=channels)
        kernels = _cache.make(key, lambda: launched("the sums of channels", grad, sizes, make))
    return kernels


class Launched:
    """Recorded kernels: ``launched(*tensors)`` launches them on the tensors' stream; the tensors have ``sizes``
    bytes.

    Nothing waits, and scratch memory comes from PyTorch's caching allocator, so a graph captures a call that was made
    before.
    """

    def __init__(
        self, name: str, like: torch.Tensor, sizes: Sequence[int], enqueue: Callable[..., Callable[..., Any]]
    ) -> None:
        """``enqueue(context)`` returns ``give(commands, *memory)``, which only launches kernels and allocates.

        Raises Fallback where the kernels cannot be had.
        """
        self.name, self.number, self.library = name, like.get_device(), library_of(torch.Tensor)
        stream = stream_of(like)
        refuse_capture(stream, name)
        with stream.current():
            recording, slots = Recording(runtime.queue(stream.device)), [Slot(size, persistent=True) for size in sizes]
            try:
                enqueue(stream.context)(recording, *slots)
                executable = Executable.of(recording, slots, [len(slots) - 1])
                launches = executable.bind(stream.place)
            except (BuildFailed, Unlaunchable) as error:
                why = str(error).splitlines()[0]
                raise Fallback(f"{name} cannot run on a {stream.kind.upper()} stream: {why}") from None
        assert launches is not None, "kernels beside convolutions are launches alone"
        self.launches = launches

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


def launched(
    name: str, like: torch.Tensor, sizes: Sequence[int], enqueue: Callable[..., Any]
) -> Launched | LeftToPyTorch:
    """Record kernels as ``Launched``; LeftToPyTorch if PyTorch computes each such call. Raises Fallback for this one
    call."""
    try:
        return Launched(name, like, sizes, enqueue)
    except Fallback as left:
        if not left.lasting:
            raise
        return LeftToPyTorch(str(left))
