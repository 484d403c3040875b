"""Which weights are constant, and until when: packed forms are cached with the tensor while it has the same values.

PyTorch's version counter and the tensor's address tell most writes. ``p.data`` has a counter of its own, so a parameter
of which it was read may have been written (``data_reads``). What else has the memory, NumPy's views say, is found on
CPUs by a sample of it (``sampled``). On CUDA, where reading would wait for the device, fewer weights are taken for
constant.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..selection.prepared import Constant
from .data_reads import Reads
from .fake_modes import forget_originals
from .sampled import Sample


class _Seen:
    """A tensor that was used as weights, and its packed forms, which do not reference the tensor."""

    __slots__ = (
        *("__weakref__", "address", "packed", "reads", "sample", "storage", "stride", "tensor", "times", "version"),
    )

    def __init__(self, tensor: torch.Tensor, forget: Any) -> None:
        self.tensor = weakref.ref(tensor, forget)
        self.note(tensor)
        self.packed: Constant | None = None
        self.times = 0
        """The number of times that packing was started."""

    def note(self, tensor: torch.Tensor) -> None:
        """Note the tensor's current memory."""
        self.version, self.address, self.stride = tensor._version, tensor.data_ptr(), tensor.stride()
        self.sample: Sample | None = None
        # The weak reference keeps the storage's address reserved, not its memory, so that no other storage can get the
        # same one.
        self.storage = tensor.untyped_storage()._weak_ref() if _on_stream(tensor) else 0
        self.reads = Reads(tensor) if isinstance(tensor, torch.nn.Parameter) else None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor still has the memory and, as far as can be detected, the values that were noted."""
        if self.version != tensor._version or self.address != tensor.data_ptr() or self.stride != tensor.stride():
            return False
        if self.reads is not None and self.reads.since():
            return False
        if self.sample is not None:
            return self.sample.holds()
        return not self.storage or self.storage == tensor.untyped_storage()._cdata

    def pack(self, tensor: torch.Tensor) -> Constant | None:
        """A new cache for packed forms of the current values; None if a write to the tensor could not be detected."""
        self.times += 1
        if tensor.is_cpu:
            self.sample = Sample.of(tensor)
            self.packed = None if self.sample is None else Constant(None)
        else:
            self.packed = Constant(None)
        return self.packed


_seen: dict[int, _Seen] = {}


def forget_before_swaps() -> None:
    """Patch ``torch.utils.swap_tensors`` to drop the weak references that we and captures of graphs left: it refuses
    tensors that have one.

    Modules call it for every parameter that they move or load, where ``torch.__future__`` asks them to.
    """
    swap = torch.utils.swap_tensors
    if hasattr(swap, "forgets_weights"):
        return

    @functools.wraps(swap)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        for tensor in (t1, t2):
            _seen.pop(id(tensor), None)
            _alive.pop(id(tensor), None)
        forget_originals()
        if weakref.getweakrefs(t1) or weakref.getweakrefs(t2):
            gc.collect()  # a capture that Dynamo gave up refers to tensors until it is collected
        swap(t1, t2)

    swap_tensors.forgets_weights = True  # type: ignore[attr-defined]
    torch.utils.swap_tensors = swap_tensors


def _on_stream(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on a device with streams, where reading its values would wait for the device."""
    return tensor.is_cuda or not (tensor.is_cpu or tensor.device.type == "opencl")


def promise(weight: torch.Tensor, fused: bool = False) -> Constant | None:
    """The cache of packed forms of ``weight``; None if the next call may have another tensor or other values.

    On CPUs constant are a frozen Parameter (``requires_grad_(False)``) and, in ``torch.inference_mode``, any Parameter
    at once and another tensor when it comes a second time unchanged. On CUDA, a frozen Parameter in inference mode,
    and that of a ``fused`` layer. A call that could learn, of weights that require gradients and outside of inference
    mode, ends what was kept of them: an optimizer is about to write.
    """
    inference = torch.is_inference_mode_enabled()
    if weight.requires_grad:
        if not inference:
            if _seen:
                _seen.pop(id(weight), None)
            return None
        if _on_stream(weight):
            return None
    elif not inference and (type(weight) is torch.Tensor or not isinstance(weight, torch.nn.Parameter)):
        return None
    if (_on_stream(weight) and not (fused or inference)) or weight.is_inference():
        return None
    key = id(weight)
    seen = _seen.get(key)
    if seen is None or seen.tensor() is not weight:
        forget_before_swaps()
        seen = _seen[key] = _Seen(weight, lambda _: _seen.pop(key, None))
        return seen.pack(weight) if isinstance(weight, torch.nn.Parameter) else None
    if not seen.holds(weight):
        seen.note(weight)
    elif seen.packed is not None:
        return seen.packed
    return seen.pack(weight)


_alive: dict[int, weakref.ref[torch.Tensor]] = {}
"""Weak references by id to tensors whose deletion must be detected."""


def alive(weight: torch.Tensor) -> Callable[[], bool]:
    """A function that returns whether ``weight`` still exists; an id or an address may be reused by another tensor."""
    key, reference = id(weight), _alive.get(id(weight))
    if reference is None or reference() is not weight:
        forget_before_swaps()
        reference = _alive[key] = weakref.ref(weight, functools.partial(_ended, key))
    number = id(reference)

    def holds() -> bool:
        reference_now = _alive.get(key)
        return reference_now is not None and id(reference_now) == number and reference_now() is not None

    return holds


def _ended(key: int, reference: weakref.ref[torch.Tensor]) -> None:
    if _alive.get(key) is reference:
        del _alive[key]


def still(weight: torch.Tensor) -> Callable[[], Any] | None:
    """A function that returns the memory of the packed forms cached for ``weight`` now, while they match its values,
    else None; it references neither weights nor memory."""
    key = id(weight)
    seen_now = _seen.get(key)
    if seen_now is None or seen_now.packed is None:
        return None
    reference, times, releases = weakref.ref(seen_now), seen_now.times, seen_now.packed.releases

    def holds() -> Any:
        seen = reference()
        if seen is None or seen.times != times or _seen.get(key) is not seen:
            return None
        packed = seen.packed
        if packed is None or packed.releases != releases:
            return None
        tensor = seen.tensor()
        return packed.addresses if tensor is not None and seen.holds(tensor) else None

    return holds
