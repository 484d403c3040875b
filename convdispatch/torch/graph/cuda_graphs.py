"""A fused model on a GPU as one CUDA graph for each set of inputs: all launches at once, without the host's part.

A small net's layers take the GPU less time than Python takes to launch them. So what is called a third time with inputs
of the same kind, as plain inference, is captured and replayed from then on, as PyTorch's compiler does in its mode
"reduce-overhead". Inputs are copied into the graph's and results out of it, so that callers own what they get. Before
that the model runs on fake tensors once, by which everything is found that a replay would not repeat.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...calls.framework import tiers
from ...device.garbage import collection_put_off
from ...selection import dispatch
from .. import counting
from ..dispatch import engine
from ..weights import promise

from .model_state import unlogged
from .tracing import written

__all__ = [
    "CALLS",
    "DEVICE",
    "GraphForm",
    "Later",
    "TooSmall",
    "Uncapturable",
    "alike",
    "captured",
    "kind_of",
    "look",
    "pool",
    "served",
]

SWITCH = "CONVDISPATCH_TORCH_GRAPHS"
CALLS = 3
"""The call with inputs of one kind that is captured; PyTorch and our tiers choose and compile in those before it."""
LAUNCHES = 16
"""Fewest operations of a model that is worth a graph: copies in and out are launches too."""
SHARE = 1 / 16
"""Of the device's memory, what a graph may hold; a net of so large tensors does not wait for the host."""
DEVICE = "cuda"
_CONSTANTS = bool | int | float | str | torch.Size | torch.dtype | torch.device | None
_C: Any = torch._C


class _Choices:
    """How often what was chosen was forgotten: graphs of before are made anew, after calls that choose again."""

    forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1


choices = _Choices()
dispatch.on_forget(choices.forget)


class Uncapturable(Exception):
    """Why the model runs layer by layer, in words."""


class TooSmall(Uncapturable):
    """It has so few operations that no inputs make a graph worth it."""


class Later(Exception):
    """What would be captured is not there yet."""


def served(leaves: Sequence[Any]) -> bool:
    """Whether a call with these inputs may be a replay: plain tensors of one device, nothing under way around it."""
    first = leaves[0].device
    for x in leaves:
        if type(x) is not torch.Tensor or x.device != first or x.layout is not torch.strided or x.is_neg():
            return False
        if x.is_complex() or x.is_conj() or x.numel() == 0 or not _dense(x):
            return False
    if torch.is_autocast_enabled(DEVICE) or os.environ.get(SWITCH) == "0":
        return False
    return not _Graph.under_way()


def _dense(x: torch.Tensor) -> bool:
    if x.is_contiguous():
        return True
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    return form is not None and x.is_contiguous(memory_format=form)


def kind_of(leaves: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What decides which kernels a model's operators run, beside shapes: of its inputs, and of PyTorch's switches."""
    return (
        tuple(x.stride() for x in leaves),
        leaves[0].device,
        *(_C._get_cublas_allow_fp16_reduced_precision_reduction(), _C._get_float32_matmul_precision()),
        *(_C._get_cudnn_enabled(), _C._get_cudnn_benchmark(), _C._get_deterministic_algorithms()),
        *(_C._get_flash_sdp_enabled(), _C._get_mem_efficient_sdp_enabled(), _C._get_math_sdp_enabled()),
        _C._get_cudnn_sdp_enabled(),
    )


class GraphForm:
    """``form(*inputs)`` replays, for one thread at a time."""

    def __init__(self, graph: _Graph, inputs: list[Any], answers: list[Any], structure: Any, lock: Any) -> None:
        self._graph, self._inputs, self._answers, self._structure = graph, inputs, answers, structure
        self._lock = lock
        self.tape = counting.Tape()
        self.held: list[Any] = []
        """Packed weights that kernels read, and the layers' calls: a caller's own capture finds them again."""
        tensors = {id(each): each for each in answers if isinstance(each, torch.Tensor)}
        memories: dict[int, list[torch.Tensor]] = {}
        for each in tensors.values():
            memories.setdefault(each.untyped_storage()._cdata, []).append(each)
        self.memories = list(memories.values())
        """The tensors that are answered, by their memory: several may be parts of one."""

    @property
    def words(self) -> str:
        """What it is, as ``fusion`` tells it."""
        return f"a CUDA graph, {sum(self.tape.solvers.values())} convolutions"

    def __call__(self, *inputs: Any) -> Any:
        """The answer, in memory of the caller's."""
        leaves = tree_leaves(inputs)
        with self._lock, self._graph.in_order(self._inputs):
            for own, given in zip(self._inputs, leaves, strict=True):
                own.copy_(given)
            self._graph.replay()
            made = {name: each for parts in self.memories for name, each in copies(parts)}
        counting.repeated(self.tape)
        answers = [leaves[each.number] if type(each) is _Input else made.get(id(each), each) for each in self._answers]
        return tree_unflatten(answers, self._structure)


class _Input:
    """An answer that is an input."""

    def __init__(self, number: int) -> None:
        self.number = number


def captured(
    forward: Callable[..., Any], leaves: Sequence[torch.Tensor], own: Sequence[torch.Tensor], pool: Any, lock: Any
) -> GraphForm:
    """The graph of ``forward(*leaves)``, of a model with tensors of its ``own``. Raises Uncapturable, Later."""
    if tiers.pending():
        raise Later
    with torch.inference_mode(False), torch.no_grad(), collection_put_off():
        look(forward, leaves, LAUNCHES)
        return _captured(forward, leaves, own, pool, lock)


def pool() -> Any:
    """Memory for graphs that run one after the other."""
    return _Graph.pool()


def _captured(
    forward: Callable[..., Any], leaves: Sequence[torch.Tensor], own: Sequence[torch.Tensor], pool: Any, lock: Any
) -> GraphForm:
    inputs = [torch.empty_like(x).copy_(x) for x in leaves]
    graph = _Graph(leaves[0].device, pool)
    held: list[Any] = []
    with graph.aside():
        with _watched(held), counting.taped() as tape:
            first = tree_leaves(forward(*inputs))
        if tape.compiling:
            raise Later
        with counting.taped():
            answer = graph.record(lambda: forward(*inputs))
        graph.replay()
        flat, structure = tree_flatten(answer)
        if not alike(first, flat):
            raise Uncapturable("a replay answers other numbers than a call")
    form = GraphForm(graph, inputs, [_answer(each, inputs, own) for each in flat], structure, lock)
    if any(len({each.dtype for each in parts}) > 1 for parts in form.memories):
        raise Uncapturable("it answers one memory as numbers of two types")
    if not any(isinstance(each, torch.Tensor) for each in form._answers):
        raise Uncapturable("it answers no tensor that it computes")
    form.tape, form.held = tape, held
    return form


def _answer(answer: Any, inputs: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> Any:
    """What is answered at a place: a tensor of the graph's, an input, or what is no tensor."""
    for number, each in enumerate(inputs):
        if answer is each:
            return _Input(number)
    if not isinstance(answer, torch.Tensor):
        if isinstance(answer, _CONSTANTS):
            return answer
        raise Uncapturable(f"it answers a {type(answer).__name__}")
    memory = answer.untyped_storage().data_ptr()
    if any(memory == each.untyped_storage().data_ptr() for each in (*inputs, *own)):
        raise Uncapturable("it answers a view of an input or of a weight")
    return answer


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether answers are the same numbers, up to what other kernels' sums differ by."""
    for one, other in zip(some, others, strict=True):
        if not isinstance(one, torch.Tensor) or not one.is_floating_point():
            continue
        close = (one.double() - other.double()).norm() <= 1e-3 * one.double().norm()
        if not close and not torch.allclose(one, other, rtol=1e-3, equal_nan=True):
            return False
    return True


@contextlib.contextmanager
def _watched(held: list[Any]) -> Iterator[None]:
    """While it lasts convolutions go by Python, and this thread's calls and the packed weights that they read are added
    to ``held``."""
    thread = threading.get_ident()

    def watcher(part: str, call: Any, tensors: Sequence[Any], geometry: Any) -> None:
        if threading.get_ident() == thread:
            held.append(call)
            if getattr(call, "packs", False):
                held.append(promise(tensors[1], fused=True))

    end = engine.watch(watcher)
    try:
        yield
    finally:
        end()


class _Looking(TorchDispatchMode):
    """Refuses what a replay would not do as a call does."""

    def __init__(self, device: torch.device, memory: set[int]) -> None:
        super().__init__()
        self._device, self._memory, self.operators = device, memory, 0
        self._drawn: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags and not _attends_to_all(func, args, kwargs or {})
        if draws and any(True for _ in written(func, args)):
            raise Uncapturable(f"{func} draws random numbers")
        if draws or (func.is_view and self._is_drawn(args)):
            made = func(*args, **(kwargs or {}))
            self._drawn += tree_leaves(made)
            return made
        self.refuse_drawn((args, kwargs))
        if any(map(self._kept, written(func, args))):
            raise Uncapturable(f"{func} writes to an input or to a part of the model")
        made = func(*args, **(kwargs or {}))
        self.operators += not func.is_view
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.device != self._device:
                raise Uncapturable(f"{func} answers a tensor on {each.device}")
        return made

    def refuse_drawn(self, used: Any) -> None:
        """Raises Uncapturable where one of these was drawn; numbers that nobody uses are no part of an answer."""
        if self._is_drawn(used):
            raise Uncapturable("it draws random numbers")

    def _is_drawn(self, used: Any) -> bool:
        return bool(self._drawn) and any(each is drawn for each in tree_leaves(used) for drawn in self._drawn)

    def _kept(self, tensor: torch.Tensor) -> bool:
        return not isinstance(tensor, FakeTensor) or tensor.untyped_storage()._cdata in self._memory


def _attends_to_all(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether it is attention without dropout: the operators that may draw random numbers draw none then."""
    if not func.name().startswith("aten::_scaled_dot_product_"):
        return False
    for at, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(kwargs.get("dropout_p", args[at] if at < len(args) else argument.default_value) == 0)
    return False


def look(forward: Callable[..., Any], leaves: Sequence[torch.Tensor], least: int = 0) -> None:
    """Run on fake tensors. Raises Uncapturable, also for fewer operations than ``least``."""
    with unlogged(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = [mode.from_tensor(x) for x in leaves]
        memory = {x.untyped_storage()._cdata for x in inputs}
        try:
            with _Looking(leaves[0].device, memory) as looking:
                answer = forward(*inputs)
                answers = tree_leaves(answer)
                looking.refuse_drawn(answers)
        except Uncapturable:
            raise
        except DynamicOutputShapeException as error:
            raise Uncapturable(f"values decide the size of what {error.func} answers") from None
        except DataDependentOutputException as error:
            raise Uncapturable(f"its code asks for a value ({error.func})") from None
        except Exception as error:  # whatever the model's code raises when it asks for a value
            raise Uncapturable(f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}") from None
    if looking.operators < least:
        raise TooSmall(f"it has {looking.operators} operations, which a graph hardly helps")
    given = attributes(answer)
    for each in answers:
        if not isinstance(each, torch.Tensor | _CONSTANTS):
            raise Uncapturable(f"it answers a {type(each).__name__}")
        if not isinstance(each, torch.Tensor) or any(each is x for x in inputs):
            continue
        if not isinstance(each, FakeTensor) or each.untyped_storage()._cdata in memory:
            raise Uncapturable("it answers a view of an input or a part of the model")
        if marks(each) - marks(inputs[0]) - given.get(id(each), set()):
            raise Uncapturable("it answers a tensor with attributes of Python's")


@functools.cache
def _side(device: torch.device) -> Any:
    """Where graphs are made: one stream, for its memory is kept."""
    return torch.cuda.Stream(device)


class _Graph:
    """PyTorch's CUDA graph, and the streams around it."""

    def __init__(self, device: torch.device, pool: Any) -> None:
        self._device, self._pool = device, pool
        self._graph: Any = torch.cuda.CUDAGraph()
        self._last: Any = None

    @staticmethod
    def pool() -> Any:
        """Memory that graphs share, which run one after the other."""
        return torch.cuda.graph_pool_handle()

    @staticmethod
    def under_way() -> bool:
        """Whether somebody captures here."""
        return torch.cuda.is_current_stream_capturing()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """On another stream, between what is before and what comes after."""
        with torch.cuda.device(self._device):
            current, side = torch.cuda.current_stream(), _side(self._device)
            side.wait_stream(current)
            try:
                with torch.cuda.stream(side):
                    yield
            finally:
                current.wait_stream(side)
            self._last = current

    def record(self, run: Callable[[], Any]) -> Any:
        """What ``run()`` answers, in the graph's memory. Raises Uncapturable."""
        before = torch.cuda.memory_reserved()
        self._graph.capture_begin(self._pool, capture_error_mode="thread_local")
        try:
            answer = run()
        except Exception as error:
            with contextlib.suppress(RuntimeError):
                self._graph.capture_end()
            raise Uncapturable(f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}") from None
        self._graph.capture_end()
        size = torch.cuda.memory_reserved() - before
        if size > SHARE * torch.cuda.get_device_properties(self._device).total_memory:
            raise Uncapturable(f"its graph would hold {size >> 20} MiB")
        return answer

    @contextlib.contextmanager
    def in_order(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """After the replay before, on whatever stream it was."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            if current != self._last:
                current.wait_stream(self._last)
                for each in inputs:
                    each.record_stream(current)
                self._last = current
            yield

    def replay(self) -> None:
        self._graph.replay()
