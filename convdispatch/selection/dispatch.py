"""Chooses: ranks the solvers for a problem on a device, makes the winner's plan, keeps it, runs it.

Order of precedence: the policy's pin, a lock file, measured records (the user's before the shipped), what the nearest
measured neighbours say, ``registry.yaml``, predicted cost, name. Every candidate is asked ``rejects`` first. All
selection code there is stands here.
"""

from __future__ import annotations

import fnmatch
import functools
import reprlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..api.device import DeviceInfo
from ..api.errors import (
    BuildFailed,
    ConvDispatchError,
    ConvDispatchWarning,
    Frozen,
    InvalidPolicy,
    MemoryLimit,
    NoSolver,
    PlanFailed,
    PluginError,
    words,
)
from ..api.policy import Policy, current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..api.solver import Solver
from ..device import runtime
from ..device.commands import thread
from ..device.kernels import Programs
from ..device.limits import problem_must_fit
from ..device.memory import full, make_room, out_of_memory, with_room
from ..device.sharedpool import out_of_order
from . import asking, lockfile, verdicts
from .asking import Fault, ask, checked_plan, guarded, predicted
from .derivation import Derived, derived
from .evidence import Evidence, borrowed, error_reason, measured
from .layered import brought
from .loader import plugins
from .neighbours import Offer
from .preference import preferred
from .prepared import Constant, Prepared
from .registry import registry
from .visible import visible_problem

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = [
    "Candidate",
    "contestants",
    "forget",
    "make",
    "prepare",
    "quarantine",
    "rank",
    "refusal",
    "run",
    "visible_problem",
]

_plans = Programs()
"""Prepared by (context, problem, what a policy selects)."""
_quarantined: dict[tuple[ConvProblem, DeviceInfo, str], str] = {}
_forgetters: list[Any] = []


@dataclass(frozen=True)
class Candidate:
    """A solver that accepts the problem, the configuration it would run with, and what put it in its place."""

    solver: Solver
    config: Mapping[str, Any]
    source: str
    """For example ``measured``, ``registry.yaml:12`` or ``predicted``."""
    rule: str = ""
    """The rule that put it there, in words."""


def contestants(problem: ConvProblem, device: DeviceInfo) -> dict[str, Solver]:
    """Every solver for a problem, by name, sorted: the plugins', and those derived where a plugin has a gap."""
    loaded = plugins()
    own: dict[str, dict[str, Solver]] = {}
    for name, solver in loaded.solvers.items():
        own.setdefault(loaded.plugin_of.get(name, name), {})[name] = solver
    return dict(sorted({**loaded.solvers, **derived(problem, device, own)}.items()))


def refusal(solver: Solver, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[str, str] | None:
    """Why ``solver`` is no candidate: (status, reason), or None. One that breaks its contract is set aside."""
    if policy.solver is not None and not fnmatch.fnmatchcase(solver.name, policy.solver):
        return "refused", f"policy(solver={policy.solver!r}) does not name it"
    if policy.deterministic and not solver.deterministic:
        return "refused", "policy(deterministic=True), and this solver is not"
    reason = registry().erratum(solver.name, problem, device)
    if reason is None and isinstance(solver, Derived):
        reason = registry().erratum(solver.root.name, solver.innermost(problem), device)
    if reason:
        return "refused", reason
    asked = ask(solver, problem, device)
    reason = asked.refused or error_reason(solver, problem, device, policy)
    if reason:
        return "refused", reason
    try:
        if asked.accepts and not asked.within(policy.workspace_limit):
            return "refused", f"no configuration needs {policy.workspace_limit} bytes of workspace or less"
    except Fault:
        pass
    if asked.fault:
        return "quarantined", asked.fault
    failed = _quarantined.get((problem, device, solver.name))
    failed = failed or verdicts.against(problem, device, solver.name, plugins().fingerprint(solver.name))
    return ("quarantined", failed) if failed else None


def rank(problem: ConvProblem, device: DeviceInfo, policy: Policy | None = None) -> list[Candidate]:
    """The candidates for a problem, best first. Raises NoSolver with every reason when there is none."""
    policy = policy or current_policy()
    while True:
        accepted, reasons = {}, {}
        for name, solver in contestants(problem, device).items():
            refused = refusal(solver, problem, device, policy)
            if refused:
                reasons[name] = refused[1]
            else:
                accepted[name] = solver
        if not accepted:
            raise NoSolver(problem, str(device), reasons)
        try:
            return _Ranking(problem, device, policy, accepted, reasons).candidates()
        except Fault:  # a later question showed it: the solver is set aside now, and the others are ranked
            continue


class _Ranking:
    """Puts the accepted solvers of one problem in order, each with the configuration it would run."""

    def __init__(
        self,
        problem: ConvProblem,
        device: DeviceInfo,
        policy: Policy,
        accepted: Mapping[str, Solver],
        reasons: Mapping[str, str],
    ) -> None:
        self.problem, self.device, self.policy = problem, device, policy
        self.accepted, self.reasons = accepted, reasons

    def candidates(self) -> list[Candidate]:
        """Locked, measured, borrowed, then by registry, predicted cost and name; each solver once."""
        ordered = []
        known = measured(self.problem, self.device, self.policy, self.accepted, self.configs)
        offers = self._offers()
        unmeasured = self._unmeasured(offers)
        near = None
        if not known:
            first = unmeasured[0].solver.name
            near = borrowed(self.problem, self.device, offers, first, self._affordable, self._cost)
        for evidence in [*self._locked(), *known, *([near] if near else [])]:
            if all(evidence.solver != candidate.solver.name for candidate in ordered):
                ordered.append(Candidate(self.accepted[evidence.solver], evidence.config, evidence.source))
        named = {candidate.solver.name for candidate in ordered}
        return ordered + [candidate for candidate in unmeasured if candidate.solver.name not in named]

    def configs(self, solver: str) -> list[Mapping[str, Any]]:
        """What a solver offers for the problem."""
        return list(ask(self.accepted[solver], self.problem, self.device).configs)

    def _affordable(self, solver: str) -> list[Mapping[str, Any]]:
        """The same within the policy's workspace."""
        return ask(self.accepted[solver], self.problem, self.device).within(self.policy.workspace_limit)

    def _cost(self, solver: str, problem: ConvProblem, config: Mapping[str, Any]) -> float | None:
        """What a solver predicts for another problem or configuration; None where it is none for that."""
        return predicted(self.accepted[solver], problem, self.device, config)

    def _offers(self) -> dict[str, Offer]:
        """What each accepted solver would run unmeasured."""
        found = {}
        for name, solver in self.accepted.items():
            asked = ask(solver, self.problem, self.device)
            config = asked.within(self.policy.workspace_limit)[0]
            found[name] = Offer(config, asked.cost(config))
        return found

    def _locked(self) -> list[Evidence]:
        found = lockfile.in_force(self.problem)
        if found is None or self.policy.solver is not None:
            return []
        decision, path = found
        if decision.solver not in self.accepted:
            reason = self.reasons.get(decision.solver, "no plugin provides it")
            raise InvalidPolicy(
                f"{path} fixes {decision.solver} for {self.problem}, which cannot run on {self.device}: {reason}; "
                "lock anew with convdispatch find --lock"
            )
        if not ask(self.accepted[decision.solver], self.problem, self.device).offers(decision.config):
            raise InvalidPolicy(
                f"{path} fixes {decision.solver} for {self.problem} with {reprlib.repr(dict(decision.config))}, "
                f"which is no configuration that it offers on {self.device}; lock anew with convdispatch find --lock"
            )
        return [Evidence(decision.solver, decision.config, f"lock file {path}")]

    def _unmeasured(self, offers: Mapping[str, Offer]) -> list[Candidate]:
        order = preferred(self.problem, self.device)
        keyed = []
        for name, offer in offers.items():
            cost = offer.cost
            rule = next((rule for rule in order if rule.means(name)), None)
            place = rule.place if rule else len(order)
            origin = rule.rule.where if rule else "predicted" if cost is not None else "name"
            candidate = Candidate(self.accepted[name], offer.config, origin, str(rule or ""))
            keyed.append(((place, cost is None, cost or 0.0, name), candidate))
        return [candidate for _, candidate in sorted(keyed, key=lambda pair: pair[0])]


def prepare(problem: ConvProblem, context: cl.Context, policy: Policy | None = None) -> Prepared:
    """The plan to run for a problem: kept, or chosen and compiled now.

    A candidate whose plan cannot be made is quarantined with a warning and the next one is tried, unless the policy
    says ``fallback=False``. Raises MemoryLimit for what the device cannot hold, NoSolver, PlanFailed, Frozen.
    """
    policy = policy or current_policy()
    key = (context, problem, policy.selection)
    prepared = _plans.get(key)
    if prepared is None:
        forbid_when_frozen(f"plan {problem}")
        problem_must_fit(problem, runtime.device_info(context.devices[0]))
        return _plans.make(key, lambda: _first_that_plans(problem, context, policy))
    thread.built += prepared.nbytes
    return prepared


def _first_that_plans(problem: ConvProblem, context: cl.Context, policy: Policy) -> Prepared:
    before, device = thread.built, runtime.device_info(context.devices[0])
    for candidate in rank(problem, device, policy):
        try:
            plan = functools.partial(make, candidate.solver, candidate.config, problem, context, policy)
            made = with_room(context.devices[0], lambda plan=plan, source=candidate.source: plan(source=source))
            made.nbytes = thread.built - before
            return made
        except (Frozen, PlanFailed, MemoryLimit):
            raise
        except Exception as error:
            quarantine(problem, device, candidate.solver.name, f"its plan() raised {words(error)}", policy, error)
    raise NoSolver(problem, str(device), _reasons(problem, device, policy))


def make(
    solver: Solver,
    config: Mapping[str, Any],
    problem: ConvProblem,
    context: cl.Context,
    policy: Policy | None = None,
    source: str = "",
) -> Prepared:
    """One solver's plan for one configuration, with the generic epilogue where the solver lacks it; not kept.

    Raises what the solver raises, and PluginError if the plan breaks the contract or the workspace limit.
    """
    seen = visible_problem(solver, problem)
    plan = checked_plan(solver, guarded(f"{solver.name}.plan()", solver.plan, context, seen, config))
    size = plan.workspace_size
    limit = policy.workspace_limit if policy else None
    if limit is not None and size > limit:
        raise PluginError(f"{solver.name} needs {size} bytes of workspace, the limit is {limit}")
    return Prepared(context, problem, seen, solver, config, plan, source)


def _reasons(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> dict[str, str]:
    solvers = contestants(problem, device)
    answers = {name: refusal(solver, problem, device, policy) for name, solver in solvers.items()}
    return {name: answer[1] for name, answer in answers.items() if answer}


def quarantine(
    problem: ConvProblem,
    device: DeviceInfo,
    solver: str,
    reason: str,
    policy: Policy | None = None,
    error: BaseException | None = None,
) -> None:
    """Set a solver aside for this problem and device, with a warning; raises PlanFailed if fallback is off."""
    if policy is not None and not policy.fallback:
        message = f"{solver} failed on {problem}, and policy(fallback=False) forbids another: {reason}"
        raise PlanFailed(message) from error
    _quarantined[problem, device, solver] = reason
    forget(problem)
    detail = f"\n{error.log}" if isinstance(error, BuildFailed) else ""
    warnings.warn(
        f"{solver} is set aside for {problem} on {device}: {reason}; the next candidate runs{detail}",
        ConvDispatchWarning,
        stacklevel=3,
    )


def run(
    problem: ConvProblem,
    prepared: Prepared,
    queue: cl.CommandQueue,
    x: Any,
    w: Any,
    y: Any,
    bias: Any = None,
    residual: Any = None,
    wait_for: Any = None,
    constant: Constant | None = None,
) -> cl.Event:
    """Enqueue a prepared convolution; if that fails, quarantine its solver and run the next candidate.

    ``constant`` is the promise behind ``w``, where the caller gave one: it keeps the packed forms. A device that is
    full gets back what waits in pools, and the same plan one more try. There is no second try where commands were
    enqueued and the result's memory is read too (``accumulate``).

    Raises PlanFailed, MemoryLimit.
    """
    wrote, room = {"x": x, "w": w, "y": y}[problem.written], False
    while True:
        before: int | None = None
        try:
            weights, after = w, wait_for
            if constant is not None and prepared.packed_size:
                weights, packed = constant.packed(prepared, queue, w, wait_for)
                after = wait_for if packed is None else [*(wait_for or ()), packed]
            before = thread.given
            if prepared.layered:
                brought.weights = w
            event = prepared.enqueue(queue, x, weights, y, bias, residual, after)
            if not hasattr(event, "wait"):
                raise PluginError(f"{prepared.solver.name}'s enqueue must return an event, got {reprlib.repr(event)}")
            return event
        except (Frozen, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too: a plugin must not end its caller's process
            begun = before is not None and prepared.begun(thread.given - before, wrote, residual)
            if out_of_memory(error):
                if room or begun or not make_room(queue.device):
                    raise full(queue.device, error) from error
                room = True
                continue
            if isinstance(error, ConvDispatchError) and not isinstance(error, (BuildFailed, PluginError)):
                raise
            device, policy, name = runtime.device_info(queue.device), current_policy(), prepared.solver.name
            quarantine(problem, device, name, f"it failed as it ran: {words(error)}", policy, error)
            if begun:
                raise PlanFailed(
                    f"{name} failed on {problem} after it may have begun to write the result, which it reads too: no "
                    f"other solver can start from there, so what the result holds is undefined; {words(error)}"
                ) from error
            if out_of_order(real := getattr(queue, "queue", queue)):
                wait_for = [*(wait_for or ()), runtime.pending(real)]  # what the failed plan enqueued still runs
            prepared = prepare(problem, prepared.context, policy)


def forget(problem: ConvProblem | None = None) -> None:
    """Drop kept plans, of one problem or all, so that the next call chooses anew; for new records or plugins."""
    _plans.drop(lambda key: problem is None or key[1] == problem)
    if problem is None:
        _quarantined.clear()
        asking.forget()
        verdicts.refresh()
    for forgetter in _forgetters:
        forgetter()


def on_forget(callback: Any) -> None:
    """Call ``callback()`` whenever plans are dropped; for caches that hold a Prepared."""
    _forgetters.append(callback)
