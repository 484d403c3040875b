"""find: verifies and measures the solvers and configurations for a problem, within a budget, and records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import InvalidArgument
from ..api.policy import Policy, current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..api.results import Results
from ..selection.records.record import Record


def find(
    problem: ConvProblem | str,
    device: Any = None,
    *,
    budget_ms: float | None = None,
    every_solver: bool = False,
    workspace_limit: int | None = None,
    memory_limit: int | None = None,
    isolate: bool | None = None,
    store: bool = True,
) -> Results:
    """Measure what could compute ``problem`` on ``device``, fastest first, and record it for later calls.

    Every candidate is verified against float64 before it is timed; one that is wrong is quarantined and never recorded.
    Every solver's default configuration runs before anyone's second; who is certain to lose is cut; the rest are
    benchmarked in interleaved rounds, which decide. ``budget_ms`` bounds the whole, compilation included: what did not
    fit in comes back as ``not tried``. With ``every_solver`` the budget ends the search only after every solver's first
    configuration was measured once. ``workspace_limit`` bounds a plan's workspace, ``memory_limit`` all device
    memory that the search holds (half of the device's when None), both in bytes. With ``isolate`` each candidate runs
    in a child process first, so that one that crashes or hangs costs only itself; by default those of plugins do that
    neither came with this package nor were verified on this machine. What was wrong, crashed or hung is remembered by
    the plugin's version. Time in the child is limited for each candidate and no part of the budget.

    ``device`` is what ``runtime.find_device`` takes. Under a policy other than the default the results hold for that
    policy and this process only; with ``store=False`` they are not recorded at all. The policy's solver pin,
    determinism and workspace limit apply. Under ``batch_invariant`` the batch that decides for all is measured.

    Raises InvalidArgument for a problem without work, MemoryLimit for one that the device cannot hold, NoDevice, and
    Frozen inside ``frozen()``.
    """
    from ..device import runtime
    from ..device.size_limits import problem_must_fit
    from .search import Search, afterwards

    problem = ConvProblem.parse(problem) if isinstance(problem, str) else problem
    if problem.mb == 0:
        raise InvalidArgument(f"{problem} has no images, so there is nothing to measure")
    if budget_ms is not None and not budget_ms > 0:
        raise InvalidArgument(f"budget_ms must be above 0, got {budget_ms!r}")
    forbid_when_frozen("measure")
    cl_device = runtime.find_device(device)
    policy = current_policy()
    problem = policy.problem_of_choice(problem)
    problem_must_fit(problem, runtime.device_info(cl_device))
    limits = [limit for limit in (workspace_limit, policy.workspace_limit) if limit is not None]
    search = Search(
        problem,
        cl_device,
        policy,
        budget_ms=budget_ms,
        every_solver=every_solver,
        workspace_limit=min(limits, default=None),
        memory_limit=memory_limit,
        isolate=isolate,
    )
    results = search.run()
    if store:
        search.record(results)
        results.runs = afterwards(results, replace(policy, workspace_limit=search.options.workspace_limit))
    return results


def why_find(
    problem: ConvProblem,
    device: DeviceInfo,
    policy: Policy | None = None,
    *,
    budget_ms: float | None = 0.0,
    workspace_limit: int | None = None,
) -> str | None:
    """Why a problem should be measured (again) on a device, or None when what is known can be trusted.

    For a search that is resumed: what it has measured is skipped, and what an upgrade made doubtful, or a plugin
    brought since, is not. A search that its budget or its memory ended counts as done unless these limits (None: no
    limit) are wider than its own.
    """
    from ..selection.choice.provenance import current
    from ..selection.records.perfdb import perfdb, scope_of
    from ..selection.records.record import stale

    policy = policy or current_policy()
    records = perfdb().lookup(problem, device, scope_of(policy))
    if not records:
        return "never measured"
    for record in records:
        doubt = stale(record, current(record.solver, device, workspace_limit))
        if doubt:
            return f"{record.solver} was {doubt}"
    if newcomers := _newcomers(problem, device, policy, records, workspace_limit):
        return f"never measured: {', '.join(newcomers)}"
    newest = max(records, key=lambda record: record.created)
    if newest.inconclusive:
        return f"the last search decided nothing: {newest.inconclusive}"
    if newest.optimal or newest.budget_ms is None or (budget_ms is not None and budget_ms <= newest.budget_ms):
        return None
    return f"the last search was incomplete: {newest.conditions}"


def _newcomers(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, known: Sequence[Record], workspace_limit: int | None
) -> list[str]:
    """The solvers that accept the problem, but whose present version has no record and took part in no recorded search.

    Records of earlier versions do not name the solvers that took part; then every plugin without a record counts.
    """
    from ..selection.choice.provenance import contestant
    from ..selection.choice.ranking import contestants, refusal
    from ..selection.plugins.loader import plugins

    took_part = {name for record in known for name in record.contest.split()}
    plugin = plugins().provider
    plugins_known = {plugin(record.solver) for record in known}
    measured = {record.solver for record in known}
    limits = [limit for limit in (workspace_limit, policy.workspace_limit) if limit is not None]
    # A search, too, applies no error limit in advance and the smaller of both workspace limits.
    policy = replace(policy, max_error=None, workspace_limit=min(limits, default=None))
    return [
        name
        for name, solver in contestants(problem, device).items()
        if name not in measured
        and (contestant(name, device) not in took_part if took_part else plugin(name) not in plugins_known)
        and refusal(solver, problem, device, policy) is None
    ]
