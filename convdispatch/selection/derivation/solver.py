"""Derived solvers: the list of those for a problem, and their methods."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...api.declared import declared_dtypes, outside_declaration
from ...api.device import DeviceInfo
from ...api.problem import DIRECTIONS, ConvProblem
from ...api.solver import EPILOGUE, Plan, Solver
from ...device.memory.allocator import sub_region
from ...device.plans.steps import Areas
from ...device.rates import rates
from ...device.runtime import device_info
from ..choice.set_aside import quarantined
from ..defensive_copy import ask
from ..layer_chain import enqueue_plan
from ..solver_query import query
from .rewriting import REWRITINGS, Rewritten

if TYPE_CHECKING:
    import pyopencl as cl

MAX_CHAIN_LENGTH = 4
"""The most rewritings that are applied one after the other."""
MAX_DERIVED_PER_PLUGIN = 2
"""The most derived solvers of one plugin for one problem, because a search compiles each of them."""
_KEEPS_OUTPUT = ("flat", "rotated", "padded")
"""The rewritings that do not copy the written tensor, so that the inner plan computes the epilogue."""


class Derived(Solver):
    """A solver that rewrites its problem, once for each name of ``chain``, and lets ``root`` compute the last one."""

    def __init__(self, root: Solver, chain: tuple[str, ...]) -> None:
        self.root, self.chain = root, chain
        self.name = "+".join((root.name, *chain))
        self.deterministic, self.exact, self.predicts = root.deterministic, root.exact, root.predicts
        self.spreads_nonfinite, self.batch_invariant = root.spreads_nonfinite, root.batch_invariant
        self.dtypes = frozenset().union(*(declared_dtypes(root, direction) for direction in DIRECTIONS))
        self.inner = Derived(root, chain[1:]) if chain[1:] else root
        self.fuses = self.inner.fuses & EPILOGUE if chain[0] in _KEEPS_OUTPUT else frozenset()

    def rewritten(self, problem: ConvProblem) -> Rewritten | str:
        """The problem's first rewriting, or the reason why it does not apply."""
        return REWRITINGS[self.chain[0]](problem)

    def words(self, problem: ConvProblem) -> str:
        """A sentence that says how the problem is rewritten, and into which problem."""
        *_, last = steps = list(self._steps(problem))
        if isinstance(last, str):
            return last
        moved = sum(step.moved for step in steps)  # type: ignore[union-attr]
        copied = f"; {moved} bytes moved" if moved else ""
        return f"{'; '.join(step.words for step in steps)}: {last.inner}{copied}"  # type: ignore[union-attr]

    def innermost(self, problem: ConvProblem) -> ConvProblem:
        """The problem that the plugin's solver computes after all rewritings that apply."""
        return [problem, *(step.inner for step in self._steps(problem) if not isinstance(step, str))][-1]

    def _steps(self, problem: ConvProblem) -> Iterator[Rewritten | str]:
        """The rewritings in their order; the last is the reason why one does not apply, if one does not."""
        solver: Solver = self
        while isinstance(solver, Derived):
            step = solver.rewritten(problem)
            yield step
            if isinstance(step, str):
                return
            solver, problem = solver.inner, step.inner

    def _must_rewrite(self, problem: ConvProblem) -> Rewritten:
        rewritten = self.rewritten(problem)
        if isinstance(rewritten, str):
            raise ValueError(f"{self.name} refuses {problem}: {rewritten}")
        return rewritten

    # --- the methods of a solver -------------------------------------------------------------------------------------

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Why the rewriting does not apply, or why the inner solver refuses the rewritten problem."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        step = self.rewritten(problem)
        if isinstance(step, str):
            return step
        reason = outside_declaration(self.inner, step.inner, device) or ask(self.inner, "rejects", step.inner, device)
        return None if reason is None else f"rewritten: {reason}"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """The configurations that the inner solver offers for the rewritten problem."""
        return ask(self.inner, "configs", self._must_rewrite(problem).inner, device)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """The inner solver's prediction for each part, plus the time of the copies; None if it predicts nothing."""
        step = self._must_rewrite(problem)
        inner_cost = ask(self.inner, "cost", step.inner, device, config)
        if inner_cost is None:
            return None
        known = rates(device)
        return step.parts * inner_cost + step.moved / known.bandwidth + step.launches * known.launch

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Bytes of the copies and of the inner plan's workspace; None if the inner solver states none."""
        rewritten = self._must_rewrite(problem)
        size = ask(self.inner, "workspace", rewritten.inner, device, config)
        return None if size is None else Room(rewritten, device, size, rewritten.packs(problem)).workspace_size

    def sums_by_batch(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> bool:
        """The inner solver's reply for the rewritten problem; the copies sum nothing."""
        return bool(ask(self.inner, "sums_by_batch", self._must_rewrite(problem).inner, device, config))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """The inner plan between the copies."""
        rewritten = self._must_rewrite(problem)
        return DerivedPlan(context, problem, rewritten, ask(self.inner, "plan", context, rewritten.inner, config))


def derived(problem: ConvProblem, device: DeviceInfo, own: Mapping[str, Mapping[str, Solver]]) -> dict[str, Derived]:
    """The derived solvers that accept a problem, by name; ``own`` holds each plugin's solvers.

    Solvers are derived only from plugins all of whose solvers refuse the problem, so that they never compete with the
    plugin's own. Each solver gets the shortest chain of rewritings that it accepts; each plugin keeps the
    MAX_DERIVED_PER_PLUGIN with the shortest chains and the least predicted costs.
    """
    solvers: dict[str, Derived] = {}
    for roots in _gaps(problem, device, own):
        chains = [candidate for root in roots if (candidate := _shortest(root, problem, device)) is not None]
        chains.sort(key=lambda one: (len(one.chain), *_cost(one, problem, device), one.name))
        solvers |= {candidate.name: candidate for candidate in chains[:MAX_DERIVED_PER_PLUGIN]}
    return solvers


def may_beat(seconds: float, problem: ConvProblem, device: DeviceInfo, own: Mapping[str, Mapping[str, Solver]]) -> bool:
    """Whether a derived solver may be predicted to take less than ``seconds``.

    Solvers are queried only for chains of rewritings whose copies alone take less.
    """
    device_rates = rates(device)
    for roots in _gaps(problem, device, own):
        for chain, inner, moved, launches in _chains(_without_epilogue(problem)):
            if moved / device_rates.bandwidth + launches * device_rates.launch >= seconds:
                continue
            for root in roots:
                if query(root, inner, device).accepts:
                    without_cost, cost = _cost(Derived(root, chain), problem, device)
                    if not without_cost and cost < seconds:
                        return True
    return False


def _gaps(problem: ConvProblem, device: DeviceInfo, own: Mapping[str, Mapping[str, Solver]]) -> Iterator[list[Solver]]:
    """For each plugin all of whose solvers refuse a problem, the solvers to derive others from."""
    # The solvers for empty batches and for quantized problems take any geometry, so nothing is derived for them.
    if problem.mb < 1 or problem.quantized:
        return
    for solvers in own.values():
        queried = [solver for name, solver in solvers.items() if not quarantined(problem, device, name)]
        answers = [query(solver, problem, device) for solver in queried]
        if not any(answer.accepts for answer in answers):
            yield [answer.solver for answer in answers if answer.fault is None and answer.elsewhere is None]


def _without_epilogue(problem: ConvProblem) -> ConvProblem:
    return problem.replace(bias=False, residual=False, activation=None, accumulate=False, norm=None, sums=False)


def _shortest(root: Solver, problem: ConvProblem, device: DeviceInfo) -> Derived | None:
    for chain, inner, _, _ in _chains(_without_epilogue(problem)):
        answer = query(root, inner, device)
        if answer.fault is not None:
            return None  # A warning of the solver's fault was given; each further chain of rewritings would repeat it.
        if answer.accepts:
            solver = Derived(root, chain)
            if query(solver, problem, device).accepts:
                return solver
    return None


def _cost(solver: Derived, problem: ConvProblem, device: DeviceInfo) -> tuple[bool, float]:
    answer = query(solver, problem, device)
    cost = answer.cost(answer.default) if answer.accepts else None
    return cost is None, cost or 0.0


@functools.lru_cache(maxsize=1024)
def _chains(problem: ConvProblem) -> tuple[tuple[tuple[str, ...], ConvProblem, int, int], ...]:
    """Chains of rewritings that apply to a problem, the shortest first, each to another final problem: the names of the
    rewritings, the final problem, and the bytes and launches of the copies."""
    newest_chains: list[tuple[tuple[str, ...], ConvProblem, int, int]] = [((), problem, 0, 0)]
    chain_to: dict[ConvProblem, tuple[tuple[str, ...], ConvProblem, int, int]] = {problem: newest_chains[0]}
    for _ in range(MAX_CHAIN_LENGTH):
        steps = [
            ((*chain, name), step.inner, moved + step.moved, launches + step.launches)
            for (chain, problem_now, moved, launches), name in itertools.product(newest_chains, REWRITINGS)
            if name not in chain and not isinstance(step := REWRITINGS[name](problem_now), str)
        ]
        newest_chains = []
        for step_chain in steps:
            if step_chain[1] not in chain_to:
                chain_to[step_chain[1]] = step_chain
                newest_chains.append(step_chain)
    return tuple(step_chain for step_chain in chain_to.values() if step_chain[0])


def named(name: str, solvers: Mapping[str, Solver]) -> Solver:
    """The solver of that name, derived ones included. Raises KeyError."""
    if name in solvers:
        return solvers[name]
    root, *chain = name.split("+")
    if not chain or any(rewriting not in REWRITINGS for rewriting in chain):
        raise KeyError(name)
    return Derived(solvers[root], tuple(chain))


class Room:
    """Offsets in the derived plan's workspace of the copies and of the inner plan's workspace, in bytes."""

    def __init__(self, rewritten: Rewritten, device: DeviceInfo, inner_size: int, packed: bool) -> None:
        areas = Areas(max(128, device.buffer_alignment))
        operand_bytes = rewritten.operand_bytes
        self.size_of = {name: size for name, size in operand_bytes.items() if not (packed and name == "w")}
        self.start_of = {name: areas.add(size) for name, size in self.size_of.items()}
        self.inner_size, self.inner_start = inner_size, areas.add(inner_size) if inner_size else 0
        self.workspace_size = areas.size


class DerivedPlan:
    """A plan that runs the plan of the rewritten problem between copies.

    Constant weights are packed by the inner plan if it reads the caller's weights, else by rotating them once.
    """

    def __init__(self, context: Any, problem: ConvProblem, rewritten: Rewritten, inner: Any) -> None:
        self.problem, self._rewritten, self._inner = problem, rewritten, inner
        self._w_through = rewritten.through.get("w") == "w"
        inner_packed = getattr(inner, "packed_size", 0) if rewritten.inner.constant_weights else 0
        self._pack_inner = bool(self._w_through and inner_packed)
        packs = self._pack_own = rewritten.packs(problem)
        self.packed_size = inner_packed if self._pack_inner else rewritten.operand_bytes["w"] if packs else 0
        self.pack_key = getattr(inner, "pack_key", None) if self._pack_inner else None
        self._room = Room(rewritten, device_info(context.devices[0]), inner.workspace_size, self._pack_own)
        self.workspace_size = self._room.workspace_size
        self.recordable = getattr(inner, "recordable", True)
        parts = range(rewritten.parts)
        copies = [copy for copy in rewritten.copies if not (packs and copy.target == "w")]
        self._before = [[(copy, copy.launch(context, problem, part)) for copy in copies] for part in parts]
        self._after = [[(copy, copy.launch(context, problem, part)) for copy in rewritten.back] for part in parts]
        self._packer = next((c.launch(context, problem) for c in rewritten.copies if packs and c.target == "w"), None)

    def pack(self, queue: cl.CommandQueue, w: Any, packed: Any, wait_for: Any = None) -> cl.Event:
        """Write the packed form of constant weights, which ``enqueue`` then reads instead of ``w``."""
        if self._packer is None:
            return self._inner.pack(queue, w, packed, wait_for)
        return self._packer(queue, (packed, w), wait_for)

    def enqueue(
        self,
        queue: cl.CommandQueue,
        x: Any,
        w: Any,
        y: Any,
        workspace: Any,
        wait_for: Sequence[cl.Event] | None = None,
        *,
        bias: Any = None,
        residual: Any = None,
    ) -> cl.Event:
        """Enqueue the copies, the inner convolution and the copies back, in this order, for each part."""
        outer = {"x": x, "w": w, "y": y}
        room, through = self._room, self._rewritten.through
        inner = {name: sub_region(workspace, room.start_of[name], size) for name, size in room.size_of.items()}
        inner |= {name: outer[source] for name, source in through.items()}
        if self._pack_own:
            inner["w"] = w
        scratch = sub_region(workspace, room.inner_start, room.inner_size) if room.inner_size else None
        for copies_before, copies_after in zip(self._before, self._after, strict=True):
            for copy, launch in copies_before:
                wait_for = [launch(queue, (inner[copy.target], outer[copy.source]), wait_for)]
            operands = (inner["x"], inner["w"], inner["y"], bias, residual)
            wait_for = [enqueue_plan(self._rewritten.inner, self._inner, queue, operands, scratch, wait_for)]
            for copy, launch in copies_after:
                wait_for = [launch(queue, (outer[copy.source], inner[copy.target]), wait_for)]
        return wait_for[0]  # type: ignore[index]
