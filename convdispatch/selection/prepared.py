"""A plan made ready to run: workspace, packed constant weights, layers, and what its solver does not fuse."""

from __future__ import annotations

import functools
import math
import reprlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pyopencl as cl

from ..api.errors import PluginError
from ..api.problem import EXTRAS, ConvProblem
from ..api.solver import Plan
from ..device import runtime
from ..device.commands.interface import Commands
from ..device.commands.queues import OpenCLQueue, commands_of
from ..device.commands.recording import Recording, Slot
from ..device.executable import OUTPUTS, SUMS, Executable, W
from ..device.memory.allocator import out_of_memory, same_memory
from ..device.places.stream import Unlaunchable
from ..device.plans.norms_and_sums import CPU_CHUNK, normalising, summing, summing_bytes
from ..device.plans.steps import StepPlan
from ..device.programs.kernels import OPERANDS as LAUNCH_OPERANDS
from ..device.programs.kernels import Launch, build, define, kernel_text
from .choice.ranking import Candidate
from .choice.set_aside import NoWorkspace
from .constants import Constant, constant
from .layer_chain import enqueue_plan, run_layered
from .plugins.loader import plugins
from .visible_problem import operand_sizes

__all__ = ["Constant", "Prepared", "constant", "enqueue_plan"]


class Prepared:
    """A solver's plan for a problem, with everything ``conv`` needs to enqueue it; safe from several threads."""

    def __init__(
        self,
        context: cl.Context,
        problem: ConvProblem,
        seen: ConvProblem,
        candidate: Candidate,
        plan: Plan,
    ) -> None:
        """``seen`` is the problem that the plan computes; the problem's other parts are added here."""
        solver, config = candidate.solver, candidate.config
        self.context, self.problem, self.solver, self.config = context, problem, solver, config
        self.plan, self.source = plan, candidate.source
        self.math = candidate.math or seen.math
        """The math that the plan computes in: the problem's own, or a more accurate one."""
        self.workspace_size = plan.workspace_size
        self._executable: Executable | None = None
        self.grow: Callable[[int], Any] = _uncounted
        """Adds bytes of packed weights to the size of the plan's cache entry, if the plan is in a bounded cache."""
        self._packers: weakref.WeakSet[Constant] = weakref.WeakSet()
        self.packed_size = getattr(plan, "packed_size", 0) if problem.constant_weights else 0
        self.pack_key = (context, solver.name, getattr(plan, "pack_key", None) or (seen, repr(sorted(config.items()))))
        self._seen = seen
        self._unfused = None if seen == problem else Unfused(context, problem, seen)
        self.layered = bool(plugins().layers)
        self.recordable = getattr(plan, "recordable", True) and not self.layered
        """Whether the plan enqueues all its commands through the plugin interface, so that they can be recorded."""

    def packed_for(self, constant: Constant) -> None:
        """Count weights that were packed for this plan as its memory, until the plan or the weights are released."""
        self._packers.add(constant)
        self.grow(self.packed_size)
        weakref.finalize(constant, _no_longer_packed, weakref.ref(self)).atexit = False

    def let_go(self) -> None:
        """Release the packed weights of a plan that has left the cache."""
        self.grow = _uncounted
        for weights in list(self._packers):
            weights.release(self.pack_key)

    def begun(self, commands: int, y: Any, residual: Any) -> bool:
        """Whether an ``enqueue`` that raised may have changed result memory that a second one would read.

        ``commands`` is the number of commands that this thread enqueued meanwhile; it is unknown for a plan that
        enqueues by other means than the header's launches.
        """
        reads_result = self._seen.accumulate or (self._seen.residual and same_memory(residual, y))
        counted = type(self.plan).enqueue is StepPlan.enqueue
        counted = counted or (self._executable is not None and not self._executable.opaque)
        return reads_result and (commands > 0 or not counted)

    @property
    def fuses_residual(self) -> bool:
        """Whether the solver adds the residual itself, element by element, so that it may be the output's own
        memory."""
        return self._seen.residual

    def enqueue(self, queue: cl.CommandQueue, *operands: Any, wait_for: Sequence[cl.Event] | None = None) -> cl.Event:
        """Enqueue the convolution with all its parts, without waiting. ``operands`` are the memory of x, w, y and those
        of EXTRAS, which may end early; w is the packed form if ``packed_size`` is not 0."""
        if not isinstance(queue, Commands):
            return self._enqueue(queue, operands, wait_for)
        commands = commands_of(queue)
        if type(commands) is Recording:
            executable = self.executable(commands.queue)
            return executable.place(commands, _filled(operands)[: len(executable.operands)])
        return self._enqueue_on(queue, operands, wait_for)

    def _enqueue_on(self, queue: Any, operands: Sequence[Any], wait_for: Any = None) -> Any:
        """Enqueue the plan on any kind of queue or commands."""
        commands = commands_of(queue)
        if type(commands) is OpenCLQueue:
            return self._enqueue(commands.queue, operands, wait_for)
        if self.recordable or self.takes(commands):
            try:
                return self._enqueue(commands, operands, wait_for)
            except (AttributeError, TypeError) as error:
                raise self.misused(commands, error) from error
        return commands.call(self._enqueue_own, operands, self.solver.name, wait_for)

    def takes(self, commands: Any) -> bool:
        """Whether a plan that enqueues by its own means does so on these commands too: ``streams`` says CUDA's."""
        on_cuda = getattr(commands, "kind", "") == "cuda" and not self.layered
        return on_cuda and bool(getattr(self.plan, "streams", False))

    def _slots(self) -> list[Slot | None]:
        """The slots of the operands in a recording; ``w`` is the packed form if there is one."""
        sizes = list(operand_sizes(self.problem))
        sizes[W] = self.packed_size or sizes[W]
        used = [True] * 3 + [size > 0 for size in sizes[3:]]
        return [Slot(max(size, 1)) if is_used else None for size, is_used in zip(sizes, used, strict=True)]

    def recorded(self, queue: cl.CommandQueue, slots: Sequence[Slot | None] = ()) -> Recording:
        """Return the plan's commands, recorded on ``slots`` for the operands. Raises PluginError for a
        plan that returns no event."""
        recording = Recording(queue)
        self._enqueue_on(recording, slots or self._slots())
        return recording

    def executable(self, queue: cl.CommandQueue) -> Executable:
        """The plan's commands, recorded once. If they cannot be recorded the executable is opaque: each call enqueues
        the plan, and reports its errors. ``queue`` is any queue of the plan's context."""
        if self._executable is None:
            outputs = [OUTPUTS[self.problem.direction], *([SUMS] if self.problem.sums else [])]
            slots = self._slots()
            owner, found = weakref.ref(self), None

            # The executable has only a weak reference to the plan, because the plan references its executable.
            def enqueue(queue: Any, *operands: Any, wait_for: Any = None) -> Any:
                return owner()._enqueue_on(queue, operands, wait_for)  # type: ignore[union-attr]

            if self.recordable:
                try:
                    found = Executable.of(self.recorded(queue, slots), slots, outputs, enqueue)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # BaseException includes SystemExit: a plugin must not end its caller's process.
                    found = None
            if found is None:
                found = Executable(None, slots, outputs, enqueue)
                found.finished = getattr(self.plan, "finished", found.finished)
            self._executable = found
        return self._executable

    def is_bound(self, place: Any) -> bool:
        """Whether the executable's programs are loaded for a place."""
        return self._executable is not None and self._executable.is_bound(place)

    def misused(self, commands: Commands, error: AttributeError | TypeError) -> PluginError:
        """The error for a plan that gave pyopencl a queue or memory that is not OpenCL's."""
        return PluginError(
            f"{self.solver.name}'s plan gave commands to {type(commands).__name__} that are not the header's "
            f"({error}); a plan that enqueues by its own means says recordable = False"
        )

    def _enqueue_own(self, queue: Any, *operands: Any, wait_for: Any = None) -> Any:
        """A plan of its own means, which a replay may hand a stream. Raises Unlaunchable."""
        if isinstance(queue, Commands) and not self.takes(queue):
            raise Unlaunchable(f"{self.solver.name} enqueues by its own means, on OpenCL's queues")
        return self._enqueue(queue, operands, wait_for)

    def _enqueue(self, queue: Any, operands: Sequence[Any], wait_for: Any = None) -> Any:
        scratch = self._scratch(queue) if self.workspace_size else None
        run_plan = functools.partial(self._enqueue_plan, queue, scratch)
        if self._unfused is None:
            return run_plan(operands, wait_for)
        return self._unfused(run_plan, queue, _filled(operands), wait_for)

    def _scratch(self, queue: Any) -> Any:
        """Allocate the workspace. Raises NoWorkspace if the device has no memory."""
        try:
            return runtime.allocate(queue, self.workspace_size)
        except Exception as error:
            if isinstance(error, MemoryError) or out_of_memory(error):
                raise NoWorkspace(
                    f"{self.solver.name} needs {self.workspace_size} bytes of workspace: {error}"
                ) from error
            raise

    def _enqueue_plan(self, queue: Any, scratch: Any, operands: Sequence[Any], wait_for: Any) -> cl.Event:
        """Enqueue the solver's plan. Raises PluginError for a plan that returns no event."""
        if self.layered:
            hook_arguments = {"workspace": scratch, "wait_for": wait_for}
            event = run_layered(self._seen, self.solver, self.plan, queue, _filled(operands), **hook_arguments)
        else:
            event = enqueue_plan(self._seen, self.plan, queue, operands, scratch, wait_for)
        if not hasattr(event, "wait"):
            raise PluginError(f"{self.solver.name}'s enqueue must return an event, got {reprlib.repr(event)}")
        return event


def let_go(gone: Sequence[Prepared]) -> None:
    """Release the packed weights of plans that have left the cache."""
    for plan in gone:
        plan.let_go()


def _uncounted(nbytes: int) -> None:
    """Do nothing; the ``grow`` of a plan that is in no bounded cache."""


def _no_longer_packed(plan: weakref.ref[Prepared]) -> None:
    prepared = plan()
    if prepared is not None:
        prepared.grow(-prepared.packed_size)


def _filled(operands: Sequence[Any]) -> tuple[Any, ...]:
    """The memory of x, w, y and of all EXTRAS, None for those that a call leaves out."""
    return *operands, *[None] * (3 + len(EXTRAS) - len(operands))


class Unfused:
    """The passes that turn the plan of ``seen`` into one of ``problem``: before it the norm of x, written to memory of
    its own; after it one pass over the written tensor for the rest of the epilogue, and the sums of its channels."""

    def __init__(self, context: cl.Context, problem: ConvProblem, seen: ConvProblem) -> None:
        self._chunk = CPU_CHUNK if runtime.device_info(context.devices[0]).type == "cpu" else 1
        self._written = "xwy".index(problem.written)
        self.accumulates = problem.accumulate and not seen.accumulate
        self._out_bytes, self._x_bytes = (math.prod(s) * problem.itemsize for s in (problem.out_shape, problem.x_shape))
        self._norm = self._epilogue = None
        rest = _epilogue_left(problem, seen)
        if problem.norm and not seen.norm and not problem.masked:
            names = ("normed", "x", "norm")
            self._norm = normalising(context, problem, names, names=names)
        if rest.extras or rest.activation or rest.accumulate:
            self._epilogue = self._epilogue_launch(context, rest)
        self._sums: list[Launch] = []
        if problem.sums and not seen.sums:
            self._sums, self._sums_bytes = summing(context, problem), summing_bytes(problem)

    def _epilogue_launch(self, context: cl.Context, rest: ConvProblem) -> Launch:
        size, shape = math.prod(rest.out_shape), rest.out_shape
        inner = 1 if rest.layout == "nhwc" else size // max(1, shape[0] * shape[1])
        text = rest.macros() + define(SIZE=size, INNER=inner, CHANNELS=rest.channels_out, CHUNK=self._chunk)
        arguments = ["out", "fresh" if rest.accumulate else "out"]
        arguments += [name if name in rest.extras else "out" for name in EXTRAS[:-1]]
        program = build(context, text + kernel_text(__package__, "epilogue.cl"))
        names = ("out", "fresh", *EXTRAS[:-1])
        return Launch(program, "epilogue", (max(1, -(-size // self._chunk)),), None, arguments, names=names)

    def __call__(self, run: Any, queue: Any, operands: Sequence[Any], wait_for: Any) -> Any:
        """Enqueue everything, and return the last event; ``run(operands, wait_for)`` enqueues the plan."""
        x, w, y, *extras = operands
        inner = [x, w, y, *extras]
        out = inner[self._written]
        if self._norm is not None:
            inner[0] = runtime.allocate(queue, self._x_bytes)
            wait_for = [self._norm(queue, (inner[0], x, extras[EXTRAS.index("norm")]), wait_for)]
        if self.accumulates:
            inner[self._written] = runtime.allocate(queue, self._out_bytes)
        event = run(inner, wait_for)
        if self._epilogue is not None:
            event = self._epilogue(queue, (out, inner[self._written], *extras[:-1]), [event])
        if self._sums:
            by_name = {"x": x, "w": w, "y": y, **dict(zip(EXTRAS, extras, strict=True))}
            by_name["workspace"] = runtime.allocate(queue, self._sums_bytes)
            launch_operands = [by_name[name] for name in LAUNCH_OPERANDS]
            for launch in self._sums:
                event = launch(queue, launch_operands, [event])
        return event


def _epilogue_left(problem: ConvProblem, seen: ConvProblem) -> ConvProblem:
    """The problem with only those parts of its epilogue, without sums, that the plan of ``seen`` lacks."""
    left = {part: getattr(problem, part) and not getattr(seen, part) for part in ("bias", "residual", "accumulate")}
    activation = None if seen.activation else problem.activation
    norm = problem.norm if problem.masked and not seen.norm else None
    return problem.replace(**left, activation=activation, norm=norm, sums=False)
