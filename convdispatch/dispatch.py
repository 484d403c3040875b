"""Chooses: ranks the solvers for a problem on a device, makes the winner's plan, keeps it, and explains itself.

Order of precedence: the policy's pin, a lock file, measured records (the user's before the shipped), the nearest
measured neighbour, ``registry.yaml``, predicted cost, name. Every candidate is asked ``rejects`` first. All selection
code there is stands here.
"""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import runtime
from .api.device import DeviceInfo
from .api.errors import BuildFailed, ConvDispatchError, ConvDispatchWarning, Frozen, NoSolver, PlanFailed, PluginError
from .api.policy import Policy, current_policy, forbid_when_frozen
from .api.problem import ConvProblem
from .api.solver import Solver
from .loader import Plugins, plugins
from .prepared import Constant, Prepared
from .registry import registry

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Candidate", "Explanation", "Verdict", "explain", "forget", "prepare", "quarantine", "rank", "run"]

_lock = threading.RLock()
_plans: dict[tuple[cl.Context, ConvProblem, Policy], Prepared] = {}
_quarantined: dict[tuple[ConvProblem, DeviceInfo, str], str] = {}
_forgetters: list[Any] = []


@dataclass(frozen=True)
class Candidate:
    """A solver that accepts the problem, the configuration it would run with, and what put it in its place."""

    solver: Solver
    config: Mapping[str, Any]
    source: str
    """For example ``measured``, ``registry.yaml:12`` or ``predicted``."""


@dataclass(frozen=True)
class Verdict:
    """What one solver answers for one problem, for ``explain``."""

    solver: str
    plugin: str
    status: str
    """``chosen``, ``accepted``, ``refused`` or ``quarantined``."""
    reason: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    predicted: float | None = None
    """Predicted cost, in direct-sum FLOP at the device's peak."""
    fuses: tuple[str, ...] = ()
    """Parts of the problem's epilogue that the solver computes itself."""


@dataclass(frozen=True)
class Explanation:
    """Every solver's answer for one problem on one device, best first, and where the choice came from."""

    problem: ConvProblem
    device: DeviceInfo
    chosen: str | None
    source: str | None
    verdicts: tuple[Verdict, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "problem": str(self.problem),
            "device": str(self.device),
            "chosen": self.chosen,
            "source": self.source,
            "solvers": [
                {
                    "solver": v.solver,
                    "plugin": v.plugin,
                    "status": v.status,
                    "reason": v.reason,
                    "config": dict(v.config),
                    "source": v.source,
                    "predicted": v.predicted,
                    "fuses": list(v.fuses),
                }
                for v in self.verdicts
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device}"]
        for verdict in self.verdicts:
            if verdict.status == "chosen":
                lines.append(f"  -> {verdict.solver} ({verdict.source})")
            elif verdict.status == "accepted":
                lines.append(f"     {verdict.solver} ({verdict.source})")
            else:
                lines.append(f"  x  {verdict.solver}: {verdict.reason}")
        return "\n".join(lines)


def visible_problem(solver: Solver, problem: ConvProblem) -> ConvProblem:
    """The problem as the solver sees it: without the parts of the epilogue that it does not fuse.

    Parts that follow an unfused one in the epilogue's order are left to the generic pass too.
    """
    if not (problem.bias or problem.residual or problem.activation or problem.accumulate):
        return problem
    if problem.accumulate and "accumulate" not in solver.fuses:
        return problem.replace(bias=False, residual=False, activation=None, accumulate=False)
    changes: dict[str, Any] = {}
    for part, nothing in (("bias", False), ("residual", False), ("activation", None)):
        if getattr(problem, part) and (part not in solver.fuses or changes):
            changes[part] = nothing
    if changes and problem.accumulate:
        return problem.replace(bias=False, residual=False, activation=None, accumulate=False)
    return problem.replace(**changes) if changes else problem


def refusal(solver: Solver, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[str, str] | None:
    """Why ``solver`` is no candidate: (status, reason), or None. A solver whose ``rejects`` raises has refused."""
    if policy.solver is not None and not fnmatch.fnmatchcase(solver.name, policy.solver):
        return "refused", f"policy(solver={policy.solver!r}) does not name it"
    if policy.deterministic and not solver.deterministic:
        return "refused", "policy(deterministic=True), and this solver is not"
    reason = registry().erratum(solver.name, problem, device)
    if reason:
        return "refused", reason
    try:
        reason = solver.rejects(visible_problem(solver, problem), device)
    except Exception as error:
        reason = f"its rejects() raised {type(error).__name__}: {error}"
        warnings.warn(f"solver {solver.name}: {reason}", ConvDispatchWarning, stacklevel=2)
    if reason:
        return "refused", reason
    if policy.workspace_limit is not None and default_config(solver, problem, device, policy.workspace_limit) is None:
        return "refused", f"no configuration needs {policy.workspace_limit} bytes of workspace or less"
    failed = _quarantined.get((problem, device, solver.name))
    return ("quarantined", failed) if failed else None


def rank(problem: ConvProblem, device: DeviceInfo, policy: Policy | None = None) -> list[Candidate]:
    """The candidates for a problem, best first. Raises NoSolver with every reason when there is none."""
    policy = policy or current_policy()
    loaded = plugins()
    accepted, reasons = [], {}
    for name in sorted(loaded.solvers):
        refused = refusal(loaded.solvers[name], problem, device, policy)
        if refused:
            reasons[name] = refused[1]
        else:
            accepted.append(loaded.solvers[name])
    if not accepted:
        raise NoSolver(problem, str(device), reasons)
    return _ordered(accepted, problem, device, policy)


def _ordered(accepted: list[Solver], problem: ConvProblem, device: DeviceInfo, policy: Policy) -> list[Candidate]:
    preferred, source = registry().preference(problem, device)
    keyed = []
    for solver in accepted:
        config = default_config(solver, problem, device, policy.workspace_limit) or {}
        place = next((i for i, glob in enumerate(preferred) if fnmatch.fnmatchcase(solver.name, glob)), len(preferred))
        cost = solver.cost(visible_problem(solver, problem), device, config)
        origin = source if place < len(preferred) else "predicted" if cost is not None else "name"
        key = (place, cost is None, cost or 0.0, solver.name)
        keyed.append((key, Candidate(solver, config, origin or "name")))
    return [candidate for _, candidate in sorted(keyed, key=lambda pair: pair[0])]


def default_config(
    solver: Solver, problem: ConvProblem, device: DeviceInfo, limit: int | None = None
) -> Mapping[str, Any] | None:
    """The first configuration of a solver whose stated workspace is within ``limit`` bytes; None when none is."""
    seen = visible_problem(solver, problem)
    for config in solver.configs(seen, device):
        size = None if limit is None else solver.workspace(seen, device, config)
        if size is None or size <= limit:
            return config
    return None


def prepare(problem: ConvProblem, context: cl.Context, policy: Policy | None = None) -> Prepared:
    """The plan to run for a problem: kept, or chosen and compiled now.

    A candidate whose plan cannot be made is quarantined with a warning and the next one is tried, unless the policy
    says ``fallback=False``. Raises NoSolver, PlanFailed, Frozen.
    """
    policy = policy or current_policy()
    key = (context, problem, policy.selection)
    prepared = _plans.get(key)
    if prepared is None:
        forbid_when_frozen(f"plan {problem}")
        with _lock:
            if key not in _plans:
                _plans[key] = _first_that_plans(problem, context, policy)
            prepared = _plans[key]
    return prepared


def _first_that_plans(problem: ConvProblem, context: cl.Context, policy: Policy) -> Prepared:
    device = runtime.device_info(context.devices[0])
    for candidate in rank(problem, device, policy):
        try:
            return make(candidate.solver, candidate.config, problem, context, policy, source=candidate.source)
        except (Frozen, PlanFailed):
            raise
        except Exception as error:
            quarantine(problem, device, candidate.solver.name, f"its plan failed: {error}", policy, error)
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
    plan = solver.plan(context, seen, config)
    size = getattr(plan, "workspace_size", None)
    if not isinstance(size, int) or size < 0 or not callable(getattr(plan, "enqueue", None)):
        raise PluginError(f"{solver.name}.plan must return workspace_size (bytes) and enqueue(...), got {plan!r}")
    limit = policy.workspace_limit if policy else None
    if limit is not None and size > limit:
        raise PluginError(f"{solver.name} needs {size} bytes of workspace, the limit is {limit}")
    return Prepared(context, problem, seen, solver, config, plan, source)


def _reasons(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> dict[str, str]:
    loaded: Plugins = plugins()
    answers = {name: refusal(solver, problem, device, policy) for name, solver in sorted(loaded.solvers.items())}
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
        raise PlanFailed(f"{solver} failed on {problem}, and policy(fallback=False) forbids another: {reason}") from error
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

    ``constant`` is the promise behind ``w``, where the caller gave one: it keeps the packed forms.
    """
    while True:
        try:
            weights = constant.packed(prepared, queue, w) if constant is not None and prepared.packed_size else w
            return prepared.enqueue(queue, x, weights, y, bias, residual, wait_for)
        except Frozen:
            raise
        except Exception as error:
            if isinstance(error, ConvDispatchError) and not isinstance(error, (BuildFailed, PluginError)):
                raise
            device, policy = runtime.device_info(queue.device), current_policy()
            quarantine(problem, device, prepared.solver.name, f"it failed as it ran: {error}", policy, error)
            prepared = prepare(problem, prepared.context, policy)


def forget(problem: ConvProblem | None = None) -> None:
    """Drop kept plans, of one problem or all, so that the next call chooses anew; for new records or plugins."""
    with _lock:
        for key in [key for key in _plans if problem is None or key[1] == problem]:
            del _plans[key]
        if problem is None:
            _quarantined.clear()
    for forgetter in _forgetters:
        forgetter()


def on_forget(callback: Any) -> None:
    """Call ``callback()`` whenever plans are dropped; for caches that hold a Prepared."""
    _forgetters.append(callback)


def explain(problem: ConvProblem | str, device: Any = None) -> Explanation:
    """Every solver's answer to a problem: refused and why, or accepted and in which place, and the choice's source.

    ``problem`` may be text; ``device`` is what ``runtime.find_device`` takes. Compiles nothing.
    """
    if isinstance(problem, str):
        problem = ConvProblem.parse(problem)
    info = device if isinstance(device, DeviceInfo) else runtime.device_info(runtime.find_device(device))
    policy, loaded = current_policy(), plugins()
    try:
        ranked = rank(problem, info, policy)
    except NoSolver:
        ranked = []
    verdicts = [*_accepted(ranked, problem, info, loaded), *_refused(problem, info, policy, loaded)]
    first = ranked[0] if ranked else None
    return Explanation(
        problem, info, first.solver.name if first else None, first.source if first else None, tuple(verdicts)
    )


def _accepted(
    ranked: list[Candidate], problem: ConvProblem, device: DeviceInfo, loaded: Plugins
) -> Iterator[Verdict]:
    for place, candidate in enumerate(ranked):
        solver = candidate.solver
        seen = visible_problem(solver, problem)
        yield Verdict(
            solver.name,
            loaded.plugin_of.get(solver.name, "?"),
            "accepted" if place else "chosen",
            config=candidate.config,
            source=candidate.source,
            predicted=solver.cost(seen, device, candidate.config),
            fuses=tuple(part for part in ("bias", "residual", "activation", "accumulate") if getattr(seen, part)),
        )


def _refused(problem: ConvProblem, device: DeviceInfo, policy: Policy, loaded: Plugins) -> Iterator[Verdict]:
    for name, solver in sorted(loaded.solvers.items()):
        answer = refusal(solver, problem, device, policy)
        if answer:
            yield Verdict(name, loaded.plugin_of.get(name, "?"), answer[0], reason=answer[1])
