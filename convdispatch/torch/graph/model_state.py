"""Whether a fused model's parts and weights are what they were, and whether somebody looks at its layers' calls."""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import ranks
from ..data_reads import Reads
from ..dispatch import engine
from ..sampled import Sample, together
from .python_state import PythonState

__all__ = ["State", "by_layers", "served", "unlogged", "watched"]

_C: Any = torch._C
_version = operator.attrgetter("_version")
_COLLECTING = "transformers.utils.output_capturing"


class _Asked(threading.local):
    for_layers = 0
    unlogged = 0


_asked = _Asked()


@contextlib.contextmanager
def by_layers() -> Iterator[None]:
    """While it lasts, this thread's fused models run layer by layer."""
    _asked.for_layers += 1
    try:
        yield
    finally:
        _asked.for_layers -= 1


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """While it lasts, PyTorch logs no operator of this thread's that raises on fake tensors, with its traceback: that a
    model asks for values is what is looked for."""
    if _silent not in _fakes.filters:
        _fakes.addFilter(_silent)
    _asked.unlogged += 1
    try:
        yield
    finally:
        _asked.unlogged -= 1


_fakes = logging.getLogger("torch._subclasses.fake_tensor")


def _silent(record: logging.LogRecord) -> bool:
    return not _asked.unlogged


class State:
    """A model's layers and weights as they were."""

    def __init__(self, model: torch.nn.Module, python: PythonState | None = None) -> None:
        """With ``python``, also what its code may read beside, and the parts and tensors that are there."""
        self.python = python
        self._modules = list(model.modules()) if python is None else python.modules
        edges = [(m._modules, name, child) for m in self._modules for name, child in m._modules.items()]
        tables = [table for m in self._modules for table in (m._parameters, m._buffers)]
        self._sized = [*tables, *(m._modules for m in self._modules)]
        self._sizes = list(map(len, self._sized))
        nones = [(table, name, None) for table in tables for name, tensor in table.items() if tensor is None]
        held = [(table, name, tensor) for table in tables for name, tensor in table.items() if tensor is not None]
        if python is not None:
            held += [({0: tensor}, 0, tensor) for tensor in python.tensors]
        # Tensors made in inference mode do not count the writes to them.
        self._unseen = any(tensor.is_inference() for _, _, tensor in held)
        self._tables, self._names, self._parts = zip(*edges, *nones, *held) if edges or nones or held else ((),) * 3
        # Writes through .data are not counted either, nor those of other views of the memory.
        self._reads = [] if self._unseen else [Reads(t) for _, _, t in held if isinstance(t, torch.nn.Parameter)]
        samples = [] if self._unseen else [Sample.of(tensor) for _, _, tensor in held]
        self._samples_hold = together([sample for sample in samples if sample is not None])
        self.tensors = [tensor for _, _, tensor in held]
        self._seen = [] if self._unseen else self.tensors
        self._memory = self._versions_and_addresses()

    def _versions_and_addresses(self) -> list[int]:
        return [*map(_version, self._seen), *map(torch.Tensor.data_ptr, self._seen)]

    def holds(self) -> bool:
        """Whether all is as it was."""
        if list(map(len, self._sized)) != self._sizes:
            return False
        if not all(map(operator.is_, map(dict.get, self._tables, self._names), self._parts)):
            return False
        if self._versions_and_addresses() != self._memory:
            return False
        if any(reads.since() for reads in self._reads) or not self._samples_hold():
            return False
        return self.python is None or self.python.changed() is None

    def disturbed(self) -> bool:
        """Whether layers must be called one by one: in training, for hooks, or as writes to weights are not seen."""
        if self._unseen:
            return True
        trained = self.python is None  # what is recorded is refused for what training does
        for m in self._modules:
            if (trained and m.training) or m._forward_pre_hooks or (m._forward_hooks and listeners(m)):
                return True
        return False

    def learns(self) -> bool:
        """Whether a gradient would be asked for."""
        return any(tensor.requires_grad for tensor in self.tensors)


def listeners(module: torch.nn.Module) -> bool:
    """Whether a module has forward hooks that are called for something.

    transformers' hooks collect hidden states where a forward around them asks for them, which they ask at each call.
    """
    hooks = module._forward_hooks
    if not hooks or any(getattr(hook, "__module__", "") != _COLLECTING for hook in hooks.values()):
        return bool(hooks)
    collector = getattr(sys.modules.get(_COLLECTING), "_active_collector", None)
    return collector is None or collector.get() is not None


_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def served(leaves: Sequence[Any]) -> bool:
    """Whether all are tensors of numbers, integers or a mask's in the host's memory, and none stands for one."""
    for x in leaves:
        if type(x) is not torch.Tensor or x.device.type != "cpu" or x.dtype not in _DTYPES:
            return False
        if x.layout is not torch.strided or x.is_neg() or x.numel() == 0:
            return False
    return True


def watched() -> bool:
    """Whether somebody looks at operators or layers as they run, or changes what they do; or other ranks must decide
    alike."""
    hooks = torch.nn.modules.module
    return bool(
        _asked.for_layers
        or _C._is_torch_function_mode_enabled()
        or _C._len_torch_dispatch_stack()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
        or engine.watched()
        or torch.autograd.forward_ad._current_level >= 0  # whose tensors carry tangents
        or ranks.many()
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
    )
