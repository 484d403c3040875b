"""A plan made ready to run: workspace, packed constant weights, layers, and the epilogue its solver does not fuse."""

from __future__ import annotations

import hashlib
import itertools
import math
import reprlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import PluginError
from ..api.problem import ConvProblem
from ..api.solver import Plan, Solver
from ..device import runtime
from ..device.cache import artifact_store
from ..device.cache.artifact_store import forbid_unstored
from ..device.commands.interface import Commands, thread
from ..device.commands.queues import OpenCLQueue, commands_of
from ..device.commands.recording import Recording, Slot
from ..device.cuda.ptx import Unlaunchable
from ..device.memory.allocator import out_of_memory, same_memory
from ..device.plans.steps import StepPlan
from ..device.programs.kernels import KernelPlan, Launch, build, kernel_text
from ..device.startup_profile import layer, phase
from .choice.set_aside import NoWorkspace
from .layer_chain import enqueue_plan, run_layered
from .plugins.loader import plugins

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Constant", "Prepared", "constant", "enqueue_plan", "no_event"]

_tokens = itertools.count(1)


class Constant:
    """Weights that will not change: a plan may pack or transform them once, and the packed form is kept here.

    Behaves as the array it wraps where ``conv`` looks (shape, dtype). Writing to the array afterwards is an error
    that nothing detects.
    """

    __slots__ = ("__weakref__", "_device_copies", "_lock", "_packed", "_seen", "addresses", "array", "token")

    def __init__(self, array: Any) -> None:
        self.array, self.token = array, next(_tokens)
        self._packed: dict[Any, Any] = {}
        self.addresses: dict[Any, Any] = {}
        """Where packed forms lie, once they are there, by whatever their reader looks them up by."""
        self._device_copies: dict[Any, Any] = {}
        self._seen: dict[str, Constant] = {}
        self._lock = threading.Lock()

    def seen_as(self, kind: str, view: Callable[[], Any]) -> Constant:
        """The same weights by another kind of array over their memory; keeps packed forms as this does."""
        found = self._seen.get(kind)
        if found is None:
            found = self._seen.setdefault(kind, Constant(view()))
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the wrapped weights."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the wrapped weights."""
        return self.array.dtype

    def on_device(self, queue: cl.CommandQueue) -> cl.MemoryObject:
        """A copy of host weights in the queue's context, made once a context."""
        commands = commands_of(queue)
        key = (commands.kind, commands.context)
        copy = self._device_copies.get(key)
        if copy is None:
            forbid_unstored("copy constant weights to the device", commands.device)
            native = np.ascontiguousarray(self.array, self.array.dtype.newbyteorder("="))
            copy = commands.bring(native)
            with self._lock:
                copy = self._device_copies.setdefault(key, copy)
        return copy

    def packed(
        self, prepared: Prepared, queue: cl.CommandQueue, w: cl.MemoryObject, wait_for: Sequence[cl.Event] | None = None
    ) -> tuple[cl.MemoryObject, cl.Event | None]:
        """The packed form that ``prepared`` wants, and the event after which it is there; None once that is past.

        Made once a context and pack key, on ``queue``, after ``wait_for``, when ``w`` holds the weights.
        """
        commands = commands_of(queue)
        key = (commands.kind, prepared.pack_key)
        found, made = self._packed.get(key), False
        if found is None:
            forbid_unstored("pack constant weights", commands.device)
            with self._lock:
                found = self._packed.get(key)
                if found is None:
                    with layer(str(prepared.problem)), phase("packing"):
                        found = _pack(prepared, commands, queue, w, wait_for)
                    commands.flush()  # other queues may wait for it
                    self._packed[key], made = found, True
        if made and commands.kind != "cuda":  # of these a captured graph may know the address alone
            prepared.packed_for(self)  # without the lock: what goes for it may be packed forms of these weights
        memory, event = found
        if event is not None and commands.complete(event):
            if key in self._packed:
                self._packed[key] = memory, None
            event = None
        return memory, event

    def release(self, pack_key: Any) -> None:
        """Let go of the packed forms of a pack key, but those on CUDA. Calls under way hold ``addresses``, and so what
        they read: the dictionary is replaced, not changed."""
        with self._lock:
            gone = {key for key in self._packed if key[1] == pack_key and key[0] != "cuda"}
            memory = [self._packed[key][0] for key in gone]
            self._packed = {key: each for key, each in self._packed.items() if key not in gone}
            self.addresses = {key: at for key, at in self.addresses.items() if not any(at is each for each in memory)}
            self.token = next(_tokens)  # launches that were set to the memory of another token are set anew


def _pack(prepared: Prepared, commands: Commands, queue: Any, w: Any, wait_for: Any) -> tuple[Any, Any]:
    """New memory with the packed form of ``w``, and the event after which it holds it."""
    memory = commands.fresh(prepared.packed_size)
    pack = prepared.plan.pack  # type: ignore[attr-defined]
    form = f"{prepared.solver.name} {artifact_store.key_of(repr(prepared.pack_key[1:]))}"
    if artifact_store.in_force() and artifact_store.find("weights", form, commands.device):
        found = artifact_store.find("weights", _weights_key(form, prepared, commands, w, wait_for), commands.device)
        if found is not None and len(found[0]) == prepared.packed_size:
            commands.write(memory, np.frombuffer(found[0], np.uint8))
            return memory, None

    def made() -> tuple[Any, Any]:
        if prepared.recordable:
            return memory, pack(queue, w, memory, wait_for)
        return memory, commands.call(pack, (w, memory), "pack", wait_for)

    return _gathered(form, prepared, commands, w, wait_for, made) if artifact_store.gathers() else made()


def _gathered(form: str, prepared: Prepared, commands: Commands, w: Any, wait_for: Any, made: Callable[[], Any]) -> Any:
    """What ``made`` answers, noted for a pack where packing takes longer than reading the packed form would."""
    made()[1].wait()  # the first time loads kernels
    packed_s = read_s = math.inf
    for _ in range(3):  # the least: who else works here must not decide what a pack holds
        start = time.perf_counter()
        memory, event = made()
        event.wait()
        packed_s, start = min(packed_s, time.perf_counter() - start), time.perf_counter()
        key = _weights_key(form, prepared, commands, w, wait_for)
        content = _read(commands, memory, prepared.packed_size)
        read_s = min(read_s, time.perf_counter() - start)
    if artifact_store.all_weights() or packed_s > read_s:
        artifact_store.note("weights", form, lambda: b"", commands.device)
        artifact_store.note("weights", key, lambda: content, commands.device)
    return memory, None


def _weights_key(form: str, prepared: Prepared, commands: Commands, w: Any, wait_for: Any) -> str:
    """What a packed form follows from: the plan's way of packing, and the weights' values."""
    problem = prepared.problem
    source = _read(commands, w, int(np.prod(problem.w_shape)) * problem.itemsize, *(wait_for or ()))
    return f"{form} {hashlib.sha256(source).hexdigest()}"


def _read(commands: Commands, memory: Any, size: int, *events: Any) -> np.ndarray:
    for event in events:
        if event is not None:
            event.wait()
    found = np.empty(size, np.uint8)
    commands.read(memory, found)
    return found


def constant(w: Any) -> Constant:
    """Promise that ``w`` (NumPy array, ``pyopencl.array.Array`` or Tensor) keeps its values; see Constant."""
    return w if isinstance(w, Constant) else Constant(w)


class Prepared:
    """A solver's plan for a problem, with everything ``conv`` needs to enqueue it; safe from several threads."""

    def __init__(
        self,
        context: cl.Context,
        problem: ConvProblem,
        seen: ConvProblem,
        solver: Solver,
        config: Mapping[str, Any],
        plan: Plan,
        source: str = "",
        math: str = "",
    ) -> None:
        self.context, self.problem, self.solver, self.config = context, problem, solver, config
        self.plan, self.source = plan, source
        self.math = math or seen.math
        """What the solver planned it in: the problem's own, or more accurate."""
        self.workspace_size = plan.workspace_size
        self.after: Callable[..., Any] | None = None
        """What is told of each call of it under ``policy(tune=...)``."""
        self.grow: Callable[[int], Any] = _uncounted
        """Counts bytes of packed weights for the plan, where it is held within a bound."""
        self._packers: weakref.WeakSet[Constant] = weakref.WeakSet()
        self.packed_size = getattr(plan, "packed_size", 0) if problem.constant_weights else 0
        self.pack_key = (context, solver.name, getattr(plan, "pack_key", None) or (seen, repr(sorted(config.items()))))
        self._seen = seen
        self._epilogue = None if seen == problem else _Epilogue(context, problem, seen)
        self.layered = bool(plugins().layers)
        self.recordable = getattr(plan, "recordable", True) and not self.layered
        """Whether the plan gives all its commands by the header's means; layers may do anything."""
        self.streams = getattr(plan, "streams", False) and not self.layered
        """Whether a plan of its own means also takes a CUDA stream for its queue."""
        self.bare = not self.layered and self._epilogue is None and not (problem.bias or problem.residual)
        """Whether ``plan.enqueue(queue, x, w, y, workspace, wait_for)`` is all of it."""

    def packed_for(self, constant: Constant) -> None:
        """Weights were packed for this plan: they count as its memory until it goes, or the weights do."""
        self._packers.add(constant)
        self.grow(self.packed_size)
        weakref.finalize(constant, _no_longer_packed, weakref.ref(self)).atexit = False

    def let_go(self) -> None:
        """The plan is not held any more for calls to come: packed weights go with it."""
        self.grow = _uncounted
        for constant in list(self._packers):
            constant.release(self.pack_key)

    def begun(self, commands: int, y: Any, residual: Any) -> bool:
        """Whether an ``enqueue`` that raised may have changed what a second one would read from the result's memory.

        ``commands`` is how many this thread gave meanwhile; of a plan that enqueues by other means than the
        header's launches nobody knows.
        """
        reads_result = self._seen.accumulate or (self._seen.residual and same_memory(residual, y))
        counted = type(self.plan).enqueue in (KernelPlan.enqueue, StepPlan.enqueue)
        return reads_result and (commands > 0 or not counted)

    @property
    def fuses_residual(self) -> bool:
        """The solver adds the residual itself, element by element, so that it may be the output's own memory."""
        return self._seen.residual

    def enqueue(
        self,
        queue: cl.CommandQueue,
        x: cl.MemoryObject,
        w: cl.MemoryObject,
        y: cl.MemoryObject,
        bias: cl.MemoryObject | None = None,
        residual: cl.MemoryObject | None = None,
        wait_for: Sequence[cl.Event] | None = None,
    ) -> cl.Event:
        """Enqueue convolution and epilogue; never waits. ``w`` is the packed form where ``packed_size`` is not 0."""
        if thread.capturing is None and not isinstance(queue, Commands):
            return self._enqueue(queue, x, w, y, bias, residual, wait_for)
        commands = commands_of(queue)
        if type(commands) is OpenCLQueue:
            return self._enqueue(queue, x, w, y, bias, residual, wait_for)
        if self.recordable or (commands.kind == "cuda" and self.streams):
            try:
                return self._enqueue(commands, x, w, y, bias, residual, wait_for)
            except (AttributeError, TypeError) as error:
                raise self.misused(commands, error) from error
        return commands.call(self._enqueue_own, (x, w, y, bias, residual), self.solver.name, wait_for)

    def recorded(self, queue: cl.CommandQueue) -> tuple[Recording, list[Slot | None]]:
        """Its commands on slots, which stand for x, w, y, bias and residual; ``w`` is the packed form, where there is
        one."""
        recording, problem = Recording(queue), self.problem
        sizes = [math.prod(shape) * problem.itemsize for shape in (problem.x_shape, problem.w_shape, problem.y_shape)]
        sizes["xwy".index(problem.written)] = math.prod(problem.out_shape) * problem.out_itemsize
        if self.packed_size:
            sizes[1] = self.packed_size
        x, w, y = (recording.allocate(size) for size in sizes)
        bias, residual = (recording.allocate(1) if each else None for each in (problem.bias, problem.residual))
        self.enqueue(recording, x, w, y, bias, residual)  # type: ignore[arg-type]
        return recording, [x, w, y, bias, residual]

    def misused(self, commands: Commands, error: AttributeError | TypeError) -> PluginError:
        """What pyopencl's error of what is no OpenCL queue and no buffer means."""
        return PluginError(
            f"{self.solver.name}'s plan gave commands to {type(commands).__name__} that are not the header's "
            f"({error}); a plan that enqueues by its own means says recordable = False"
        )

    def _enqueue_own(self, queue: Any, *operands: Any, wait_for: Any = None) -> Any:
        """A plan of its own means, which a replay may hand a CUDA stream. Raises Unlaunchable."""
        if not self.streams and isinstance(queue, Commands):
            raise Unlaunchable(f"{self.solver.name} enqueues by its own means, on OpenCL's queues")
        return self._enqueue(queue, *operands, wait_for=wait_for)

    def _enqueue(
        self, queue: Any, x: Any, w: Any, y: Any, bias: Any = None, residual: Any = None, wait_for: Any = None
    ) -> Any:
        scratch = self._scratch(queue) if self.workspace_size else None
        if self.bare:
            return self.plan.enqueue(queue, x, w, y, scratch, wait_for)
        if self._epilogue is not None:
            return self._epilogue(self, queue, x, w, y, scratch, bias, residual, wait_for)
        return self._enqueue_plan(queue, x, w, y, scratch, bias, residual, wait_for)

    def _scratch(self, queue: Any) -> Any:
        """Memory for the workspace. Raises NoWorkspace where there is none."""
        try:
            return runtime.allocate(queue, self.workspace_size)
        except Exception as error:
            if isinstance(error, MemoryError) or out_of_memory(error):
                raise NoWorkspace(
                    f"{self.solver.name} needs {self.workspace_size} bytes of workspace: {error}"
                ) from error
            raise

    def _enqueue_plan(
        self, queue: Any, x: Any, w: Any, y: Any, scratch: Any, bias: Any, residual: Any, wait_for: Any
    ) -> cl.Event:
        if self.layered:
            return run_layered(
                self._seen,
                self.solver,
                self.plan,
                queue,
                (x, w, y),
                workspace=scratch,
                wait_for=wait_for,
                bias=bias,
                residual=residual,
            )
        return enqueue_plan(self._seen, self.plan, queue, x, w, y, scratch, wait_for, bias, residual)


def let_go(gone: Sequence[Prepared]) -> None:
    """Plans are not held any more for calls to come."""
    for each in gone:
        each.let_go()


def _uncounted(nbytes: int) -> None:
    """Of a plan that is held within no bound."""


def _no_longer_packed(plan: weakref.ref[Prepared]) -> None:
    prepared = plan()
    if prepared is not None:
        prepared.grow(-prepared.packed_size)


def no_event(prepared: Prepared, found: Any) -> PluginError:
    """For a plan that answers something else than an event."""
    return PluginError(f"{prepared.solver.name}'s enqueue must return an event, got {reprlib.repr(found)}")


class _Epilogue:
    """What the solver does not fuse, as one pass over the written tensor after the convolution."""

    def __init__(self, context: cl.Context, problem: ConvProblem, seen: ConvProblem) -> None:
        self.accumulates = problem.accumulate and not seen.accumulate
        shape = problem.out_shape
        size = int(np.prod(shape))
        inner = 1 if problem.layout == "nhwc" else size // max(1, shape[0] * shape[1])
        rest = {part: getattr(problem, part) and not getattr(seen, part) for part in ("bias", "residual")}
        activation = None if seen.activation else problem.activation
        text = problem.replace(**rest, accumulate=self.accumulates, activation=activation).macros()
        text += f"#define SIZE {size}\n#define INNER {inner}\n#define CHANNELS {problem.channels_out}\n"
        arguments = ["out", "fresh" if self.accumulates else "out"]
        arguments += ["bias" if rest["bias"] else "out", "residual" if rest["residual"] else "out"]
        chunk = 1024 if runtime.device_info(context.devices[0]).type == "cpu" else 1
        text += f"#define CHUNK {chunk}\n"
        program = build(context, text + kernel_text(__package__, "epilogue.cl"))
        names = ("out", "fresh", "bias", "residual")
        self._launch = Launch(program, "epilogue", (max(1, -(-size // chunk)),), None, arguments, names=names)
        self._written, self._bytes = problem.written, size * problem.itemsize

    def __call__(
        self,
        prepared: Prepared,
        queue: Any,
        x: Any,
        w: Any,
        y: Any,
        scratch: Any,
        bias: Any,
        residual: Any,
        wait_for: Any,
    ) -> cl.Event:
        operands = {"x": x, "w": w, "y": y}
        out = operands[self._written]
        if self.accumulates:
            operands[self._written] = runtime.allocate(queue, self._bytes)
        event = prepared._enqueue_plan(queue, *operands.values(), scratch, bias, residual, wait_for)
        if not hasattr(event, "wait"):  # before this pass waits for it
            raise no_event(prepared, event)
        return self._launch(queue, (out, operands[self._written], bias, residual), [event])
