"""The inference form of a net: traced, fused, laid out, recorded and replayed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import InvalidArgument
from ..calls.arrays.accepted import refuse_mask
from ..calls.arrays.array_library import Library
from ..calls.arrays.known_libraries import library_of
from ..device import runtime
from ..device.cache import artifact_store
from ..device.commands.interface import thread
from ..device.cuda.stream import CudaMemory, CudaStream
from ..device.programs.compile_pool import side_by_side
from ..device.replay.program import Program
from ..device.replay.schedule import Schedule
from ..selection import dispatch
from ..selection.planpack import from_environment
from ..selection.prepared import Prepared
from ..tensor import Tensor
from . import choice_cache
from .form_benchmark import benchmark_forms, check_purpose
from .graph import is_planned, map_operands
from .graph_variants import in_layouts, layouts_of, mixed, planned_convolutions, traced_and_fused
from .host_arrays import HostProgram
from .layout_pruning import pruned
from .lower import Lowered, lower, problem_of
from .passes.layout import LAYOUTS, MIXED
from .passes.slicing import sliced
from .weights import Weights

if TYPE_CHECKING:
    import pyopencl as cl

    from ..api.problem import ConvProblem
    from .multi_device import InferenceNets

__all__ = ["InferenceNet", "build", "problems"]


def build(
    net: Callable[..., Any],
    *shapes: Sequence[int],
    dtype: Any = np.float32,
    queue: cl.CommandQueue | None = None,
    layout: str | None = None,
    queues: int | None = None,
    math: str | None = None,
    for_: str = "latency",
    recall: bool = False,
    devices: Any = None,
    **options: Any,
) -> InferenceNet | InferenceNets:
    """The inference form of ``net`` for inputs of ``shapes``, in the layout that the net was made with.

    ``dtype`` is what inputs and results are and what lies between them, or a list with one for each input. A net of
    float32 weights is rounded to "float16" or "bfloat16" where that is asked, after batch norms are folded. ``math``
    is ``conv()``'s, for float32 data; None leaves what the net says. The weights are read now: later changes do not
    reach the result.

    Batch norms are folded, sums and activations fused, weights packed, memory shared by lifetimes. ``layout`` ("nchw",
    "nhwc", or "mixed", where a plan over the net turns some pictures) and ``queues`` (at most so many, for branches
    that do not depend on each other) are chosen by timing where they are None; with ``recall`` a choice on which two
    measurements agree is kept on disk, and the next process builds that form alone.

    ``for_`` says what forms are timed at: ``"latency"``, one call that is waited for, or ``"throughput"``, calls that
    follow each other. Its name is ``for``, which Python lets nobody write as a keyword: ``for_="throughput"`` and
    ``**{"for": "throughput"}`` say the same.

    ``devices``, ``"all"`` or a list, builds the net on each of several devices: an ``InferenceNets``, to which any
    number of batches may be given. The net's own weights may lie on any device.

    Raises InvalidArgument where the net computes by anything but convdispatch's operations.
    """
    purpose = check_purpose(options.pop("for", for_))
    if options:
        raise TypeError(f"build() got unexpected keyword arguments: {', '.join(sorted(options))}")
    if devices is not None:
        if queue is not None:
            raise InvalidArgument("build takes a queue of one device, or devices, not both")
        from .multi_device import build_on

        more = {"dtype": dtype, "layout": layout, "queues": queues, "math": math, "for_": purpose, "recall": recall}
        return build_on(build, devices, net, *shapes, **more)
    queue = queue or runtime.queue()
    if layout not in (None, *LAYOUTS, MIXED):
        raise InvalidArgument(f"layout must be None or one of {', '.join((*LAYOUTS, MIXED))}, got {layout!r}")
    if queues is not None and queues < 1:
        raise InvalidArgument(f"queues must be None or at least 1, got {queues}")
    from_environment()
    compiled = thread.compiled
    graph = traced_and_fused(net, shapes, dtype, queue, math)
    # What tracing needs was not there, nor will be the rest; but beside a GPU's compilers that start, choosing is slow.
    is_cold = thread.compiled > compiled and runtime.device_info(queue.device).type == "cpu"
    layouts, counts = layouts_of(graph, layout), _counts(queues)
    free = layout is None and queues is None
    net_key = (
        artifact_store.key_of(purpose, *choice_cache.described(graph))
        if free and artifact_store.wanted(queue.device)
        else ""
    )
    packed = artifact_store.find("forms", net_key, queue.device) if net_key else None
    key = choice_cache.key_of(graph, queue, purpose) if recall and free and packed is None else None
    known = None if key is None else choice_cache.load(key)
    if packed is not None and packed[0]["layout"] in (*layouts, MIXED):
        layouts, counts = (packed[0]["layout"],), (packed[0]["queues"],)
    elif known is not None and known.is_final and known.layout in (*layouts, MIXED):
        layouts, counts = (known.layout,), (known.queues,)
    with side_by_side(queue.device, at_once=is_cold):
        graphs, counts, ranked = pruned(in_layouts(graph, layouts, queue), counts, queue)
        if layout is None and len(layouts) > 1:
            graphs |= mixed(graph, queue, ranked)
        graphs = {each: sliced(shaped, runtime.device_info(queue.device)) for each, shaped in graphs.items()}
        weights, given = Weights(queue, graph.aside), planned_convolutions(graphs.values())

        def pack(problem: ConvProblem, prepared: Prepared) -> None:
            for w in given[problem]:
                weights.take(w, prepared)

        ready = dispatch.prepare_all(list(given), queue.context, ranked, pack)
        lowered = {each: lower(shaped, queue, ready, weights) for each, shaped in graphs.items()}
    forms = [form for each in graphs for form in _forms(each, counts, lowered[each])]
    weights.settle()
    graph.aside.end()
    best = _fastest(forms, purpose, key, known)
    if net_key:
        artifact_store.note("forms", net_key, lambda: {"layout": best.layout, "queues": best.queues}, queue.device)
    best.tried = [form.described for form in forms]
    return best


def problems(
    net: Callable[..., Any],
    *shapes: Sequence[int],
    dtype: Any = np.float32,
    queue: cl.CommandQueue | None = None,
    layout: str | None = None,
    math: str | None = None,
) -> list[ConvProblem]:
    """The convolutions that ``build`` would ask for, in order, with what is fused into them; for both layouts, the one
    after the other, where ``layout`` is None. Nothing is planned or computed."""
    graph = traced_and_fused(net, shapes, dtype, queue or runtime.queue(), math)
    queue = queue or runtime.queue()
    shaped = in_layouts(graph, layouts_of(graph, layout), queue).values()
    return [
        problem_of(node)
        for each in shaped
        for node in sliced(each, runtime.device_info(queue.device)).nodes
        if is_planned(node)
    ]


def _counts(wanted: int | None) -> tuple[int, ...]:
    return (1, 4) if wanted is None else (wanted,)


def _forms(layout: str | None, counts: Sequence[int], lowered: Lowered) -> list[InferenceNet]:
    """A graph that was lowered, on each number of queues on which it is another program."""
    commands, forms = lowered.recording.commands, []
    for count in counts:
        schedule = Schedule.single(commands) if count == 1 else Schedule.branches(commands, lowered.needs, count)
        if schedule.queues > 1 or not forms:  # more queues are no other form where nothing can overlap
            forms.append(InferenceNet(lowered, Program(lowered.recording, schedule), layout))
    return forms


def _fastest(
    forms: list[InferenceNet], purpose: str, key: str | None, known: choice_cache.Choice | None
) -> InferenceNet:
    """The form that is fastest at its purpose; what was found is noted under ``key``."""
    if len(forms) == 1:
        forms[0].watch = choice_cache.Watch(key, known) if key is not None and known is not None else None
        return forms[0]
    names = [(form.layout, form.queues) for form in forms]
    before = None if known is None else (known.layout, known.queues)
    verdict = benchmark_forms(forms, purpose, names.index(before) if before in names else None)
    for form, ms in zip(forms, verdict.ms, strict=True):
        form.ms = ms
    if key is not None:
        choice_cache.store(key, *names[verdict.best], verdict, known)
    return forms[verdict.best]


@dataclass(frozen=True)
class Layer:
    """One operation of the net as it runs: its name, and for a convolution its problem, solver and why this one."""

    name: str
    problem: Any = None
    solver: str = ""
    source: str = ""
    sources: tuple[str, ...] = ()
    """What it computes in the net's own words, as a file's nodes, where they are known."""


class InferenceNet:
    """A net ready to run: ``net(x)`` copies x in, replays the program and answers the result.

    Calls are enqueued in order on one queue and do not wait for each other; NumPy arrays come back as NumPy arrays.
    """

    def __init__(self, lowered: Lowered, program: Program, layout: str | None) -> None:
        self._lowered, self._program = lowered, program
        self.layout, self.queues = layout, program.schedule.queues
        self.ms = float("nan")
        """What a call took when forms were compared; NaN where there was one form."""
        self.watch: choice_cache.Watch | None = None
        self._quick: Callable[[Sequence[Any]], Any] | None = None
        """The way of calls with arrays that kernels take as they are, after the first."""
        self.tried: list[str] = []
        """Every form that was built and its milliseconds, for the record."""

    @property
    def described(self) -> str:
        """Layout, queues and time."""
        return f"{self.layout or 'as traced'}, {self.queues} queues: {self.ms:.3f} ms"

    @property
    def nbytes(self) -> int:
        """Bytes of activations, workspaces, inputs and outputs; without weights."""
        return self._program.nbytes

    @property
    def unshared_nbytes(self) -> int:
        """What ``nbytes`` would be if nothing shared memory."""
        return self._program.nbytes - self._program.arena.size + self._program.arena.unshared

    @property
    def queue(self) -> cl.CommandQueue:
        """Where a run begins and ends."""
        return self._program.queue

    @property
    def commands(self) -> int:
        """Enqueues of one run."""
        return len(self._program.what)

    @property
    def steps(self) -> list[int]:
        """For each enqueue of a run, the place in ``layers`` of the operation that it belongs to."""
        return [command.step for command in self._lowered.recording.commands]

    @property
    def layers(self) -> list[Layer]:
        """The operations in the order in which they run."""
        return [
            Layer(node.name, sources=node.sources)
            if node.prepared is None
            else Layer(node.name, node.problem, node.prepared.solver.name, node.prepared.source, node.sources)
            for node in self._lowered.nodes
        ]

    def __call__(self, *inputs: Any) -> Any:
        """The result for inputs of the built shapes: tensors (new ones, on the net's queue), or arrays of their kind.

        Arrays of another library on the net's CUDA device are read, and results written, on that library's current
        stream, on which the net runs as a CUDA graph.
        """
        if self._quick is not None and (answer := self._quick(inputs)) is not None:
            return answer
        if len(inputs) != len(self._lowered.inputs):
            raise InvalidArgument(f"the net takes {len(self._lowered.inputs)} inputs, got {len(inputs)}")
        library = library_of(type(inputs[0])) if inputs else None
        if library is None:
            if not all(isinstance(given, np.ndarray) for given in inputs):
                return self._call(inputs, self._fetch)
            if self.watch is not None:
                return self.watch.call(self, lambda: self._call_on_host(inputs))
            return self._call_on_host(inputs)
        places = [library.place(given) for given in inputs]
        if any(library_of(type(given)) is not library for given in inputs) or len(set(places)) > 1:
            raise InvalidArgument(f"the net's inputs must all be of {library.name}, in one place")
        if places[0] is not None:
            return self._call_on_cuda(library, inputs, library.stream(inputs[0], places[0]))
        views = [library.host(given) for given in inputs]
        return self._call_on_host(views, lambda array: library.from_host(array, inputs[0]))

    def _call(self, inputs: Sequence[Any], fetch: Callable[[Tensor], Any]) -> Any:
        for given, inner in zip(inputs, self._lowered.inputs, strict=True):
            self._bring(given, inner)
        self._program.run()
        return map_operands(fetch, self._lowered.output)

    def _call_on_host(
        self, inputs: Sequence[np.ndarray], change: Callable[[np.ndarray], Any] = lambda array: array
    ) -> Any:
        """What ``change`` makes of the results: where the arrays lie, if the device can, else by way of its memory."""
        for given, inner in zip(inputs, self._lowered.inputs, strict=True):
            refuse_mask("an input", given)
            self._check(given.shape, given.dtype.name, inner)
        plain = [np.asarray(given, inner.dtype) for given, inner in zip(inputs, self._lowered.inputs, strict=True)]
        if self.host_program is None:
            return self._call(plain, lambda inner: change(self._fetch_host(inner)))
        if self.watch is None:
            self._quick = self.host_program
        return self.host_program(plain, change)

    @functools.cached_property
    def host_program(self) -> HostProgram | None:
        """What runs the net on the host's arrays where they lie; None where that cannot be."""
        return HostProgram.of(
            self._program, self._lowered.recording.commands, self._lowered.inputs, self._lowered.output
        )

    def _call_on_cuda(self, library: Library, inputs: Sequence[Any], stream: CudaStream) -> Any:
        """The result for another library's arrays on a CUDA device, all of it on one stream."""
        if stream.device != self._program.queue.device:
            raise InvalidArgument(f"the net was built on {self._program.queue.device.name}, got arrays on {stream}")
        with stream.current():
            for given, inner in zip(inputs, self._lowered.inputs, strict=True):
                self._check(tuple(given.shape), library.dtype(given), inner)
                given = given if library.contiguous(given) else library.compact(given)
                address, held = library.address(given, stream)
                source = CudaMemory(address, inner.nbytes, held)
                stream.copy(self._program.memory(inner.base_data), source, inner.nbytes)
            self._program.run_on(stream)

            def fetch(inner: Tensor) -> Any:
                memory = self._program.memory(inner.base_data)
                real = Tensor(memory, inner.shape, inner.dtype, stream, inner.strides, inner.offset)
                real = real if real.contiguous else real.copy()
                made = library.empty(real.shape, inputs[0], stream)
                address, held = library.address(made, stream)
                stream.copy(CudaMemory(address, real.nbytes, held), real.base_data, real.nbytes, real.offset)
                return library.finished(made, stream)

            answer = map_operands(fetch, self._lowered.output)
            library.keep(stream, inputs)
        return answer

    def run(self, stream: CudaStream | None = None) -> cl.Event | None:
        """Replay without bringing or fetching, perhaps on a CUDA stream; see ``inputs`` and ``output``."""
        if stream is not None:
            self._program.run_on(stream)
            return None
        return self._program.run()

    def layer_ms(self, runs: int = 10) -> list[float]:
        """The least milliseconds that each of ``layers`` took on the device in ``runs`` runs, on one queue in order.

        NaN for one whose commands the device does not time (a library's own).
        """
        found = [0.0] * len(self._lowered.nodes)
        for step, ms in zip(self.steps, self._program.timed(runs), strict=True):
            found[step] += ms
        return found

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that a run reads; write to them on the net's queue and call ``run``."""
        return [self._real(inner) for inner in self._lowered.inputs]

    @property
    def output(self) -> Any:
        """The tensors that a run writes, overwritten by the next one."""
        return map_operands(self._real, self._lowered.output)

    def _real(self, inner: Tensor) -> Tensor:
        memory = self._program.memory(inner.base_data)
        return Tensor(memory, inner.shape, inner.dtype, self._program.queue, inner.strides, inner.offset)

    @staticmethod
    def _check(shape: tuple[int, ...], dtype: str, inner: Tensor) -> None:
        if shape != inner.shape or dtype != inner.dtype.name:
            raise InvalidArgument(f"the net was built for {inner.shape} {inner.dtype.name}, got {shape} {dtype}")

    def _bring(self, given: Any, inner: Tensor) -> None:
        import pyopencl as cl

        self._check(tuple(given.shape), given.dtype.name, inner)
        queue, memory = self._program.queue, self._program.memory(inner.base_data)
        if isinstance(given, np.ndarray):
            cl.enqueue_copy(queue, memory, np.ascontiguousarray(given), is_blocking=True)
            return
        given = given if given.contiguous else given.copy()
        other, ready = given.queue if given.queue != queue else None, None
        if other is not None:
            ready = [runtime.pending(other)]
        event = runtime.copy(queue, memory, given.base_data, inner.nbytes, source_offset=given.offset, wait_for=ready)
        if other is not None:  # its later work may have the tensor's memory, should the tensor go
            queue.flush()
            runtime.hold(other, event)

    def _fetch(self, inner: Tensor) -> Tensor:
        return self._real(inner).copy()

    def _fetch_host(self, inner: Tensor) -> np.ndarray:
        return self._real(inner).numpy()
