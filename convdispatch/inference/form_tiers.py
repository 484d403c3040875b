"""The form of a net that is predicted fastest runs while the others are built in the background; then calls decide.

With nothing cached a net in two layouts takes a compiler twice as long as in one. So the first calls run what the
prediction names, and once the others are there, calls with the host's arrays run each form in turns: what they take
says which one stays. A caller that holds a form's tensors keeps that form.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ..api import settings
from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..device.programs.compile_pool import compilers
from ..device.runtime import device_info
from .form_benchmark import Verdict, verdict_of
from .graph import Graph
from .layout_pruning import Ranked, planned_convolutions, seconds

if TYPE_CHECKING:
    from .net import Change, InferenceNet

LEAST = 16
"""The least number of unplanned convolutions for which other forms are built in the background; fewer compile soon
enough."""
SAMPLES = 4
"""The number of calls of each form that are timed, after one untimed call."""


def tiered(
    graphs: dict[str | None, Graph], ranked: Ranked, device: cl.Device
) -> tuple[dict[str | None, Graph], dict[str | None, Graph]]:
    """Which of the ``graphs``, by layout, to build now, and which in the background.

    All now where the policy waits, or where there are few convolutions.
    """
    policy = current_policy()
    waits = (policy.tier or settings.TIER.value()) == "full" or policy.binds or policy.frozen
    if waits or len(graphs) < 2 or compilers(device) < 2:
        return graphs, {}
    info = device_info(device)
    times = {layout: seconds(graph, info, ranked) for layout, graph in graphs.items()}
    first_layout = min(times, key=lambda layout: math.inf if math.isnan(times[layout]) else times[layout])
    later = {layout: graph for layout, graph in graphs.items() if layout != first_layout}
    first_problems = planned_convolutions([graphs[first_layout]])
    if sum(problem not in first_problems for problem in planned_convolutions(later.values())) < LEAST:
        return graphs, {}
    return {first_layout: graphs[first_layout]}, later


class Tiers:
    """Builds the other forms of ``net`` in a thread, then times its calls in turns over all; see
    ``InferenceNet.watch``.

    ``build`` returns the others; ``keep`` is called with the form that stays and the verdict.
    """

    def __init__(
        self,
        net: InferenceNet,
        build: Callable[[], Sequence[InferenceNet]],
        keep: Callable[[InferenceNet, Verdict], Any],
    ) -> None:
        self._build, self._keep = build, keep
        _undecided.add(net)
        self._others: Sequence[InferenceNet] | None = None
        """The other forms of the net: None until they are built, empty if that failed."""
        self._lock, self._turn = threading.Lock(), 0
        self._samples: list[list[float]] = []
        self.thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._work,), name="convdispatch-forms", daemon=True
        )
        self.thread.start()

    def _work(self) -> None:
        other_forms: Sequence[InferenceNet] = ()
        try:
            other_forms = self._build()
        except Exception:  # The first form stays in use; the next build of the net raises the error again.
            pass
        finally:
            self._samples = [[] for _ in range(1 + len(other_forms))]
            self._others = other_forms

    def call(self, net: InferenceNet, inputs: Sequence[np.ndarray], change: Change) -> Any:
        """The results of a call, by whichever form has its turn."""
        other_forms = self._others
        if not other_forms:
            if other_forms is not None:
                self.pin(net)
            return net.call_on_host(inputs, change)
        with self._lock:
            turn, self._turn = self._turn % (1 + len(other_forms)), self._turn + 1
        start = time.perf_counter()
        try:
            results = (other_forms[turn - 1] if turn else net).call_on_host(inputs, change)
        except InvalidArgument:
            raise
        except Exception:
            if not turn:
                raise
            self.pin(net)
            return net.call_on_host(inputs, change)
        took = time.perf_counter() - start
        with self._lock:
            self._samples[turn].append(took)
            if net.watch is self and all(len(each) > SAMPLES for each in self._samples):
                self._decide(net, other_forms)
        return results

    def _decide(self, net: InferenceNet, other_forms: Sequence[InferenceNet]) -> None:
        half = SAMPLES // 2
        series = [[each[begin : begin + half] for each in self._samples] for begin in (1, 1 + half)]
        verdict = verdict_of(series, 0)
        for form, ms in zip((net, *other_forms), verdict.ms, strict=True):
            form.ms = ms
        net.tried = [form.described for form in (net, *other_forms)]
        if verdict.best:
            net.become(other_forms[verdict.best - 1])
        self.pin(net)
        self._keep(net, verdict)

    def pin(self, net: InferenceNet) -> None:
        """The form that ``net`` is now stays."""
        if net.watch is self:
            net.watch = None
            _undecided.discard(net)


_undecided: weakref.WeakSet[InferenceNet] = weakref.WeakSet()
"""Nets whose forms are being built or timed."""


def settle_all(end: float = math.inf) -> int:
    """Wait until the fastest form of each net of this process is known, by calls on zeros; returns how many were open.
    A net whose forms are not built at the time ``end`` (of ``time.monotonic``) stays open."""
    nets = [(net, net.watch) for net in list(_undecided)]
    for net, watch in nets:
        if not isinstance(watch, Tiers):
            continue
        watch.thread.join(min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX))
        # The inputs are read from ``_lowered``, because reading ``net.inputs`` would bind the net to its present form.
        inputs = [np.zeros(x.shape, x.dtype) for x in net._lowered.inputs]
        while net.watch is watch and not watch.thread.is_alive():
            net(*inputs)
    return len(nets)


def pending() -> int:
    """The number of nets whose forms are being built or timed."""
    return len(_undecided)
