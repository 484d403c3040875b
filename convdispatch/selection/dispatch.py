"""Makes and runs plans: the first candidate's plan is made and cached; if it fails, the next candidate's.

The order of the candidates is decided in ``choice.ranking``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyopencl as cl

from ..api.device import DeviceInfo
from ..api.errors import BuildFailed, ConvDispatchError, Frozen, MemoryLimit, NoSolver, PlanFailed, PluginError
from ..api.fault_text import words
from ..api.policy import Policy, current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..api.solver import Solver
from ..device import runtime
from ..device.cache import artifact_store
from ..device.cache.artifact_store import forbid_unstored
from ..device.cache.bounded import Families
from ..device.commands.interface import thread
from ..device.memory.allocator import full, make_room, out_of_memory, with_room
from ..device.memory.shared_pool import out_of_order
from ..device.places.stream import Stream
from ..device.programs.compile_pool import run as run_side_by_side
from ..device.programs.kernels import CALL_BYTES, Programs
from ..device.size_limits import problem_must_fit, size_text, workspace_room
from ..device.startup_profile import layer, phase
from . import async_compile, decision_store, solver_query
from .choice.ranking import Candidate, reasons
from .choice.set_aside import NoWorkspace, forgive, lacked, must_have_room, set_aside, short_of_memory
from .defensive_copy import ArgumentsChanged, ask, banned, on_ban
from .layer_chain import unpacked_weights
from .planpack import decisions, from_environment
from .plugins import verdicts
from .plugins.loader import plugins, warn_once
from .prepared import Constant, Prepared, let_go
from .solver_query import checked_plan, guarded, planned_as, query
from .visible_problem import SIZES_OF_A_LAYER, layer_of, visible_problem

_plans = Programs(let_go)
"""The cached plans (Prepared), by context, problem and ``Policy.selection``."""
_families = Families(SIZES_OF_A_LAYER)
_forget_callbacks: list[Any] = []
_NO_LAYERS = contextlib.nullcontext()


def prepare(
    problem: ConvProblem,
    context: cl.Context,
    policy: Policy | None = None,
    ranked: Iterable[Candidate] | None = None,
) -> Prepared:
    """The plan to run for a problem: from the cache, or chosen and compiled now.

    A candidate whose plan cannot be made is quarantined with a warning and the next one is tried, unless the policy
    says ``fallback=False``. ``ranked`` are its candidates under this policy, if they are known.
    Raises MemoryLimit for what the device cannot hold, NoSolver, PlanFailed, Frozen.
    """
    policy = policy or current_policy()
    key = (context, problem, policy.selection)
    prepared = _plans.part(key)
    if prepared is None:
        prepared = _plan_uncached(problem, context, policy, key, ranked)
    return prepared


def _with_growth(key: Any, prepared: Prepared) -> Prepared:
    """The plan, for the cache entry ``key``, whose size grows with the weights that are packed for the plan."""
    prepared.grow = functools.partial(_plans.grow, key)
    return prepared


def planned(problem: ConvProblem, context: cl.Context, policy: Policy) -> bool:
    """Whether the plan that ``prepare`` would return is in the cache."""
    return _plans.get((context, problem, policy.selection)) is not None


def loaded(problem: ConvProblem, stream: Stream, policy: Policy) -> bool:
    """Whether the plan that ``prepare`` would return is in the cache, with all its programs loaded for a stream."""
    prepared = _plans.get((stream.context, problem, policy.selection))
    return prepared is not None and prepared.is_bound(stream.place)


def _plan_uncached(
    problem: ConvProblem, context: cl.Context, policy: Policy, key: Any, ranked: Iterable[Candidate] | None = None
) -> Prepared:
    from_environment()
    forbid_unstored(f"plan {problem}", context.devices[0])
    problem_must_fit(problem, runtime.device_info(context.devices[0]))

    def chosen() -> Prepared:
        further = _families.further((context, layer_of(problem), policy.selection), problem)
        return _plans.make(key, lambda: _with_growth(key, _first_that_plans(problem, context, policy, ranked)), further)

    with layer(str(problem)):
        if async_compile.is_enabled(policy):
            return async_compile.ready_first(problem, context, key, chosen, _invalidate_calls)
        return chosen()


def prepare_all(
    problems: Sequence[ConvProblem],
    context: cl.Context,
    ranked: Mapping[ConvProblem, Iterable[Candidate]] = MappingProxyType({}),
    then: Callable[[ConvProblem, Prepared], Any] | None = None,
) -> dict[ConvProblem, Prepared]:
    """The plans of several problems, made in parallel if ``compiling.side_by_side`` is in force; otherwise none.

    Problems that cannot be planned are left out; ``prepare`` raises the reason. ``ranked`` are known candidates, by
    problem. ``then`` is called with each plan when it is made; what it raises is ignored.
    """
    policy, plans = replace(current_policy(), tier=None), {}

    def one(problem: ConvProblem) -> None:
        plans[problem] = prepared = prepare(problem, context, policy, ranked.get(problem))
        if then is not None:
            then(problem, prepared)

    if not policy.frozen:
        plugins()  # Plugins are loaded once here, before several threads ask for them.
        run_side_by_side([functools.partial(one, problem) for problem in dict.fromkeys(problems)])
    return plans


def _first_that_plans(
    problem: ConvProblem, context: cl.Context, policy: Policy, ranked: Iterable[Candidate] | None = None
) -> Prepared:
    device = runtime.device_info(context.devices[0])
    try:
        for candidate in _candidates(problem, context.devices[0], device, policy, ranked):
            compiled = thread.compiled
            if banned(candidate.solver):
                continue
            if policy.is_invariant:
                candidate = _for_this_batch(candidate, problem, device, policy)
            try:
                make_plan = functools.partial(make, candidate.solver, candidate.config, problem, context, policy)
                prepared = with_room(context.devices[0], functools.partial(make_plan, candidate))
                decisions.note(prepared, context.devices[0], policy, thread.compiled - compiled)
                return prepared
            except (Frozen, PlanFailed):
                raise
            except MemoryLimit as error:
                if policy.frozen:
                    raise
                _set_aside_for_memory(problem, device, candidate.solver.name, 0, policy, error)
            except ArgumentsChanged as error:  # The warning of the changed argument has named the plugin already.
                forbid_fallback(problem, candidate.solver.name, str(error), policy, error)
            except Exception as error:
                quarantine(problem, device, candidate.solver.name, f"its plan() raised {words(error)}", policy, error)
        raise NoSolver(problem, str(device), reasons(problem, device, policy))
    except NoSolver as error:
        raise short_of_memory(problem, device, error) from None


def _for_this_batch(candidate: Candidate, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> Candidate:
    """A candidate that was chosen for another batch size, with the math that it was offered for there. Raises NoSolver
    if it cannot compute this batch, because another solver would give other bits."""
    solver, config, chosen = candidate.solver, candidate.config, policy.problem_of_choice(problem)
    answers = query(solver, problem, device)
    reason = answers.refused or answers.fault
    if reason is None:
        size, limits = answers.workspace(config), (policy.workspace_limit, workspace_room(problem, device))
        room = min((limit for limit in limits if limit is not None), default=None)
        if size is not None and room is not None and size > room:
            reason = f"needs {size_text(size)} of workspace, got {size_text(room)}"
    if reason is not None:
        why = f"policy(batch_invariant=True) runs it for every batch, and not for this one: {reason}; split the batch"
        raise NoSolver(problem, str(device), {solver.name: why})
    return replace(candidate, math=candidate.math or query(solver, chosen, device).shown(config).math)


def _candidates(
    problem: ConvProblem,
    device: cl.Device,
    info: DeviceInfo,
    policy: Policy,
    ranked: Iterable[Candidate] | None = None,
) -> Iterator[Candidate]:
    """A plan pack's candidate first; then the others, which are ranked only if the loop reaches them."""
    packed = None
    if artifact_store.in_force():
        with phase("selection"):
            packed = decisions.fixed_by_pack(problem, device, info, policy)
        if packed is not None:
            yield packed
    forbid_when_frozen(f"plan {problem}")
    if ranked is None:
        with phase("selection"):
            ranked = decision_store.choices(problem, info, policy)
    yield from (candidate for candidate in ranked if packed is None or candidate.solver.name != packed.solver.name)


def make(
    solver: Solver,
    config: Mapping[str, Any],
    problem: ConvProblem,
    context: cl.Context,
    policy: Policy | None = None,
    candidate: Candidate | None = None,
) -> Prepared:
    """One solver's plan for one configuration, with the generic epilogue where the solver lacks it; not cached.

    ``candidate`` is what the two were chosen as, if they were: it gives the plan's source, and perhaps the math that
    the configuration was offered for, for which the solver is asked otherwise.
    Raises what the solver raises, and PluginError if the plan breaks the contract or the workspace limit.
    """
    candidate = candidate or Candidate(solver, config, "")
    visible = visible_problem(solver, problem)
    shown = planned_as(candidate, problem, visible, context)
    with phase("plan"):
        plan = checked_plan(solver, guarded(f"{solver.name}.plan()", ask, solver, "plan", context, shown, config))
    size = plan.workspace_size
    limit = policy.workspace_limit if policy else None
    if limit is not None and size > limit:
        raise PluginError(f"{solver.name} needs {size} bytes of workspace, the limit is {limit}")
    must_have_room(problem, runtime.device_info(context.devices[0]), solver.name, size)
    return Prepared(context, problem, visible, replace(candidate, math=shown.math), plan)


def quarantine(
    problem: ConvProblem,
    device: DeviceInfo,
    solver: str,
    reason: str,
    policy: Policy | None = None,
    error: BaseException | None = None,
) -> None:
    """Set a solver aside for this problem and device, with a warning; raises PlanFailed if fallback is off."""
    forbid_fallback(problem, solver, reason, policy, error)
    chosen = (policy or current_policy()).problem_of_choice(problem)
    set_aside(chosen, device, solver, reason)
    forget(chosen)
    detail = f"\n{error.log}" if isinstance(error, BuildFailed) else ""
    message = f"{solver} is set aside for {problem} on {device}: {reason}; the next candidate runs{detail}"
    warn_once(
        solver, f"{reason.removeprefix('find: ').partition(':')[0]} {type(error).__name__}", message, stacklevel=3
    )


def forbid_fallback(
    problem: ConvProblem, solver: str, reason: str, policy: Policy | None, error: BaseException | None
) -> None:
    """Raise PlanFailed if the policy forbids another solver than the one that failed."""
    if policy is not None and not policy.fallback:
        message = f"{solver} failed on {problem}, and policy(fallback=False) forbids another: {reason}"
        raise PlanFailed(message) from error


def run(
    prepared: Prepared,
    queue: cl.CommandQueue,
    operands: Sequence[Any],
    wait_for: Any = None,
    constant: Constant | None = None,
    failed: BaseException | None = None,
) -> cl.Event:
    """Enqueue a prepared convolution; if that fails, quarantine its solver and run the next candidate.

    ``operands`` are the memory of x, w, y and of EXTRAS. ``constant`` caches the packed forms of w, if the caller
    promised that w is constant. On a full device the memory pools are emptied and the plan is tried once more, unless
    commands were enqueued and the result's memory is also read (``accumulate``). ``failed`` is the error that the
    plan's executable raised for a caller that ran it itself.

    Raises PlanFailed, MemoryLimit.
    """
    problem, room = prepared.problem, False
    x, w, y, *extras = operands
    residual = extras[1] if len(extras) > 1 else None
    while True:
        before: int | None = None
        try:
            # A failure that is passed in comes from a fast path, which ran the plan's executable itself.
            handed_over = failed is not None
            if failed is not None:
                error, failed = failed, None
                raise error
            weights, after = w, wait_for
            if constant is not None and prepared.packed_size:
                weights, packed = constant.packed(prepared, queue, w, wait_for)
                after = wait_for if packed is None else [*(wait_for or ()), packed]
            before = thread.enqueued
            with unpacked_weights(w) if prepared.layered else _NO_LAYERS:
                event = prepared.enqueue(queue, x, weights, y, *extras, wait_for=after)
            break
        except (Frozen, KeyboardInterrupt):
            raise
        except BaseException as error:  # BaseException includes SystemExit: a plugin must not end its caller's process.
            written_memory = {"x": x, "w": w, "y": y}[problem.written]
            commands = int(getattr(error, "launched", False)) if before is None else thread.enqueued - before
            begun = (before is not None or handed_over) and prepared.begun(commands, written_memory, residual)
            lacking: MemoryLimit | None = error if isinstance(error, NoWorkspace) else None
            # The memory that a fast path lacks may be that of the plan's workspace.
            is_full = handed_over and isinstance(error, MemoryLimit)
            if lacking is None and (out_of_memory(error) or (is_full and not room)):
                if not (room or begun) and make_room(queue.device):
                    room = True
                    continue
                lacking = full(queue.device, error) if out_of_memory(error) else error
                # A recordable plan's commands allocate no memory of their own: another plan would lack it too.
                if begun or prepared.recordable:
                    raise lacking from error
            device, policy, name = runtime.device_info(queue.device), current_policy(), prepared.solver.name
            if lacking is not None:
                if policy.frozen:
                    raise lacking from error
                _set_aside_for_memory(problem, device, name, prepared.workspace_size, policy, lacking)
                prepared = prepare(problem, prepared.context, policy)
                continue
            if isinstance(error, ConvDispatchError) and not isinstance(error, (BuildFailed, PluginError)):
                raise
            quarantine(problem, device, name, f"it failed as it ran: {words(error)}", policy, error)
            if begun:
                raise PlanFailed(
                    f"{name} failed on {problem} after it may have begun to write the result, which it reads too: no "
                    f"other solver can start from there, so what the result holds is undefined; {words(error)}"
                ) from error
            if out_of_order(plain_queue := getattr(queue, "queue", queue)):
                # Commands that the failed plan enqueued may still run, so the next plan waits for them.
                wait_for = [*(wait_for or ()), runtime.pending(plain_queue)]
            prepared = prepare(problem, prepared.context, policy)
    return event


def _set_aside_for_memory(
    problem: ConvProblem, device: DeviceInfo, solver: str, size: int, policy: Policy, error: MemoryLimit
) -> None:
    """Set a solver aside for lack of memory; once no other solver is left it may be tried again."""
    # A batch that does not fit is an error under ``batch_invariant``: another solver would give it other bits.
    if not policy.fallback or policy.is_invariant:
        raise error
    lacked(problem, device, solver, size, error)
    quarantine(problem, device, solver, f"no memory: {words(error)}", policy, error)


def adopt(problem: ConvProblem, context: cl.Context, policy: Policy, prepared: Prepared) -> None:
    """Cache a plan that was made elsewhere: from now on calls under the policy run it."""
    key = (context, problem, policy.selection)
    _plans.drop(lambda other: other == key)
    _plans.put(key, _with_growth(key, prepared), CALL_BYTES)
    _invalidate_calls()


def _invalidate_calls() -> None:
    """Make cached calls ask for their plan again; cached plans stay."""
    for callback in _forget_callbacks:
        callback()


def forget(problem: ConvProblem | None = None) -> None:
    """Drop cached plans, of one problem or all, so that the next call chooses anew: after new records or plugins."""
    _plans.drop(lambda key: problem is None or problem in (key[1], key[2].problem_of_choice(key[1])))
    if problem is None:
        _families.forget()
        forgive()
        solver_query.forget()
        verdicts.refresh()
        decision_store.forget()
        async_compile.forget()
    _invalidate_calls()


def on_forget(callback: Any) -> Any:
    """Call ``callback()`` whenever plans are dropped; for caches that hold a Prepared. Returns it."""
    _forget_callbacks.append(callback)
    return callback


@on_ban
def _forget_plans() -> None:
    """Drop all plans when a plugin is set aside, so that its problems are chosen again."""
    _plans.drop(lambda key: True)
    _invalidate_calls()
