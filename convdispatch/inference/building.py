"""Turns a net into the form that runs it: traced, fused, in both layouts, planned and recorded; the fastest form is
chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..api.problem import MATHS, ConvProblem
from ..device import background, runtime
from ..device.cache import artifact_store
from ..device.cache.keys import key_of
from ..device.commands.interface import thread
from ..device.places import intraop
from ..device.programs.compile_pool import side_by_side
from ..device.replay.program import Program
from ..selection import dispatch
from ..selection.planpack import from_environment
from ..selection.prepared import Prepared
from . import choice_cache
from .form_benchmark import Verdict, benchmark_forms
from .form_tiers import Tiers, tiered
from .graph import Background, Graph, Weights, is_planned
from .host_arrays import OWN, PYTORCH, THREADS
from .layout_pruning import Ranked, planned_convolutions, pruned
from .lower import lower, problem_of
from .net import InferenceNet
from .passes.fusion import fuse
from .passes.layout import LAYOUTS, relayout
from .passes.precision import dtype_of, traced_in, with_dtype, with_math
from .passes.slicing import sliced
from .trace import trace


def build(
    net: Callable[..., Any],
    *shapes: Sequence[int],
    dtype: Any = np.float32,
    queue: cl.CommandQueue | None = None,
    layout: str | None = None,
    math: str | None = None,
    recall: bool = False,
    threads: str = OWN,
) -> InferenceNet:
    """The inference form of ``net`` for inputs of ``shapes``, in the layout that the net was made with.

    ``dtype`` is what inputs and results are and what lies between them, or a list with one for each input. A net of
    float32 weights is rounded to "float16" or "bfloat16" where that is asked, after batch norms are folded. ``math``
    is ``conv()``'s, for float32 data; None leaves what the net says. The weights are read now: later changes do not
    reach the result.

    Batch norms are folded, sums and activations fused, weights packed, memory shared by lifetimes. ``layout`` ("nchw"
    or "nhwc") is chosen by timing calls that are waited for where it is None; with ``recall`` a choice on which two
    measurements agree is kept on disk, and the next process builds that form alone. With ``recall`` a large net with
    nothing cached on a CPU runs in the form that is predicted fastest: the others are built in the background, then
    calls with arrays run all in turns, and the fastest stays. ``policy(tier="full")``, or ``deterministic``, waits for
    all. Under ``batch_invariant`` the layout is the one that is predicted fastest for the batch of choice.

    The net's own weights may lie on another device than ``queue``'s.

    ``threads`` are those in which calls on a CPU run: the device's ``"own"``, or ``"pytorch"``, PyTorch's intra-op
    threads, for a net that is called between PyTorch's operators. ``InferenceNet.own_threads`` says why a net that was
    built for PyTorch's cannot run there. Forms are timed in the threads in which they run.

    Raises InvalidArgument where the net computes by anything but convdispatch's operations.
    """
    queue = queue or runtime.queue()
    if layout not in (None, *LAYOUTS):
        raise InvalidArgument(f"layout must be None or one of {', '.join(LAYOUTS)}, got {layout!r}")
    if threads not in THREADS:
        raise InvalidArgument(f"threads must be one of {', '.join(THREADS)}, got {threads!r}")
    packed_use = choice_use = "latency"
    if threads == PYTORCH:  # the number of threads decides which form is fastest
        packed_use = "latency in PyTorch's threads"
        choice_use = f"{packed_use}, {intraop.thread_count()}"
    from_environment()
    compiled = thread.compiled
    graph = traced_and_fused(net, shapes, dtype, queue, math)
    # A CPU net whose tracing had to compile kernels is cold; on a GPU, compilers that start would disturb the choice.
    is_cold = thread.compiled > compiled and runtime.device_info(queue.device).type == "cpu"
    layouts = _layouts_of(graph, layout)
    all_forms_allowed, invariant = layout is None, current_policy().is_invariant
    tiers = is_cold and recall and all_forms_allowed
    net_key = (
        key_of(packed_use, *choice_cache.described(graph))
        if all_forms_allowed and not invariant and (artifact_store.gathers() or artifact_store.in_force(queue.device))
        else ""
    )
    packed_form = artifact_store.find("forms", net_key, queue.device) if net_key else None
    key = (
        choice_cache.choice_key(graph, queue, choice_use)
        if recall and all_forms_allowed and packed_form is None
        else None
    )
    stored_choice = None if key is None else choice_cache.load(key)
    if packed_form is not None and packed_form[0]["layout"] in layouts:
        layouts = (packed_form[0]["layout"],)
    elif stored_choice is not None and stored_choice.is_final and stored_choice.layout in layouts:
        layouts = (stored_choice.layout,)
    with side_by_side(queue.device, at_once=is_cold):
        graphs, ranked = pruned(_in_layouts(graph, layouts), queue)
        graphs = {each: sliced(shaped, runtime.device_info(queue.device)) for each, shaped in graphs.items()}
        graphs, later = tiered(graphs, ranked, queue.device) if tiers else (graphs, {})
        plans = _plans(graphs, queue, ranked, graph.background)
        forms = _forms(graphs, queue, threads, *plans)
    graph.background.end()
    best = _fastest(forms, key, stored_choice)
    if net_key:
        artifact_store.note("forms", net_key, lambda: {"layout": best.layout}, queue.device)
    best.tried = [form.described for form in forms]
    if later:

        def others() -> list[InferenceNet]:
            with side_by_side(queue.device, at_once=True, beside_calls=True):
                planned = _plans(later, queue, ranked, Background())
                with background.at_work():
                    return _forms(later, queue, threads, *planned)

        def keep(form: InferenceNet, verdict: Verdict) -> None:
            if key is not None:
                choice_cache.store(key, form.layout, verdict, stored_choice)

        best.watch = Tiers(best, others, keep)
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
    queue = queue or runtime.queue()
    graph = traced_and_fused(net, shapes, dtype, queue, math)
    shaped = _in_layouts(graph, _layouts_of(graph, layout)).values()
    return [
        problem_of(node)
        for each in shaped
        for node in sliced(each, runtime.device_info(queue.device)).nodes
        if is_planned(node)
    ]


def traced_and_fused(
    net: Callable[..., Any], shapes: Sequence[Sequence[int]], dtype: Any, queue: cl.CommandQueue, math: str | None
) -> Graph:
    """The graph of a net for inputs of ``shapes``, as ``build`` describes them, with what its convolutions take in."""
    if math is not None and math not in MATHS:
        raise InvalidArgument(f"math must be None or one of {', '.join(MATHS)}, got {math!r}")
    each = isinstance(dtype, list | tuple)
    target_dtype = dtype if each else dtype_of(dtype)
    traced = target_dtype if each else traced_in(net, target_dtype)
    # A module in training mode would update its batch-norm statistics and apply dropout.
    training = getattr(net, "training", False)
    if training:
        net.eval()  # type: ignore[attr-defined]
    try:
        graph = fuse(trace(net, shapes, traced, queue), is_rounded=traced != target_dtype)
        if traced != target_dtype:
            graph = with_dtype(graph, target_dtype)
        if math is not None:
            graph = with_math(graph, math)
        graph.move(queue)
        return graph
    finally:
        if training:
            net.train()  # type: ignore[attr-defined]


def _layouts_of(graph: Graph, wanted: str | None) -> tuple[str | None, ...]:
    """Return the layouts to build: the requested one, or all candidates; None is the layout as traced."""
    if wanted is not None:
        return (wanted,)
    pictures = any(len(ref.shape) == 4 for node in graph.nodes for ref in node.refs)
    return LAYOUTS if pictures else (None,)


def _in_layouts(graph: Graph, layouts: Sequence[str | None]) -> dict[str | None, Graph]:
    return {layout: graph if layout is None else relayout(graph, layout) for layout in layouts}


def _plans(
    graphs: Mapping[str | None, Graph], queue: cl.CommandQueue, ranked: Ranked, pending: Background
) -> tuple[Mapping[ConvProblem, Prepared], Weights]:
    """The plans of all convolutions, side by side, and their weights on the way into them."""
    weights, weights_by_problem = Weights(queue, pending), planned_convolutions(graphs.values())

    def pack(problem: ConvProblem, prepared: Prepared) -> None:
        for w in weights_by_problem[problem]:
            weights.take(w, prepared)

    return dispatch.prepare_all(list(weights_by_problem), queue.context, ranked, pack), weights


def _forms(
    graphs: Mapping[str | None, Graph],
    queue: cl.CommandQueue,
    threads: str,
    ready: Mapping[ConvProblem, Prepared],
    weights: Weights,
) -> list[InferenceNet]:
    """Each graph recorded."""
    forms = []
    for layout, graph in graphs.items():
        lowered = lower(graph, queue, ready, weights)
        forms.append(InferenceNet(lowered, Program(lowered.recording), layout, threads))
    weights.settle()
    return forms


def _fastest(forms: list[InferenceNet], key: str | None, stored_choice: choice_cache.Choice | None) -> InferenceNet:
    """Return the fastest form; the result of the benchmark is stored under ``key``."""
    if len(forms) == 1:
        return forms[0]
    names = [form.layout for form in forms]
    known = stored_choice is not None and stored_choice.layout in names
    verdict = benchmark_forms(forms, names.index(stored_choice.layout) if known else None)  # type: ignore[union-attr]
    for form, ms in zip(forms, verdict.ms, strict=True):
        form.ms = ms
    if key is not None:
        choice_cache.store(key, names[verdict.best], verdict, stored_choice)
    return forms[verdict.best]
