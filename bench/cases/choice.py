"""Regret: what is chosen without a search beside the best that could have run, on problems that nobody chose.

    python -m bench choice --device intel --count 40 --seed 1                      # the CPU at hand
    python -m bench choice --device intel --target core-avx2 --count 40 --seed 1   # as on a processor with AVX2 alone
    python -m bench choice --device cuda --count 40 --kind float32 --kind tf32 --kind half --seconds 150
    python -m bench choice --ranking --count 40 --kind float32 --kind tf32 --kind half    # what a choice itself takes

``drawn.py`` draws the problems; odd seeds are for fitting, even ones for judging. Each solver that accepts runs the
configuration that it would run unmeasured; those that predict nothing (vendors' libraries, which are never chosen
unmeasured) do not. All are looked at, those within ``NEAR`` of the best and the chosen one then race
in interleaved rounds over operands that take turns. On ``cuda`` a side is a CUDA graph of calls on PyTorch's tensors;
processes compile side by side, and one at a time measures. ``--compile`` compiles only, so that a later run measures
alone. Rates are estimates where ``CONVDISPATCH_RATES`` names no folder. Runs go on where the last one ended, in the
file that ``--into`` names; ``--seconds`` bounds a run.

``--ranking`` runs nothing: it prints, for four devices as they are described, what choosing takes a problem, how many
queries of solvers, and what one of them takes; with nothing cached but what is imported.

Printed: chosen over best (geometric mean, 95th percentile, worst), the worst problems, and by solver how its
predictions stood to its times beside all the others', and whom its cost put ahead or behind wrongly, at what price.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from bench.drawn import KINDS, drawn
from bench.results import append_row, read_rows
from bench.workers import Lost, farm

NEAR = 1.6
"""Who took so many times the best at a look races no more."""
LOOKS, ROUNDS, RACE_MS, TASK_S = 3, 15, 1500.0, 100.0
RANKED = ("avx512", "avx2", "h200", "mi300x")
"""The described devices for which ``--ranking`` chooses."""


def on_device(problem: Any, device: str, compile_only: bool) -> dict[str, Any]:
    """The problem's row on an OpenCL device: each solver's predicted and measured milliseconds, and who is chosen."""
    import pyopencl as cl

    from convdispatch.device import runtime
    from convdispatch.measurement.search.trial import Harness
    from convdispatch.selection import dispatch

    found = runtime.find_device(device)
    rivals = offers(problem, runtime.device_info(found))
    queue = cl.CommandQueue(runtime.context(found))
    harness, samplers, failed = None if compile_only else Harness(problem, queue), {}, {}
    for name, (solver, config, predicted) in rivals.items():
        try:
            prepared = dispatch.make(solver, config, problem, queue.context)
            if harness is not None:
                samplers[name] = harness.sampler(prepared, predicted or 1.0)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:120]}"
    return row_of(problem, rivals, failed, race(samplers, next(iter(rivals))) if samplers else {})


def on_cuda(problem: Any, lock: Any, compile_only: bool) -> dict[str, Any]:
    """The same by the public call on PyTorch's tensors, in CUDA graphs; ``lock`` is held while it measures."""
    import fcntl

    import torch

    import convdispatch as cd
    from bench.timer import graph_side
    from convdispatch.device import runtime

    rivals = offers(problem, runtime.device_info(runtime.find_device("nvidia")))
    samplers, failed = {}, {}
    work = cuda_work(problem)
    for name in rivals:

        def pinned(turn: int, name: str = name) -> None:
            with cd.policy(solver=name, fallback=False):
                work(turn)

        try:
            pinned(0)
            torch.cuda.synchronize()
            samplers[name] = graph_side(pinned)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:120]}"
    if compile_only or not samplers:
        return row_of(problem, rivals, failed, {})
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        sides = {}
        for name, side in samplers.items():
            try:
                sides[name] = _graph_sampler(side)
            except Exception as error:  # what goes through the host cannot be captured
                failed[name] = f"{type(error).__name__}: {str(error)[:120]}"
        return row_of(problem, rivals, failed, race(sides, next(iter(rivals))) if sides else {})
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _graph_sampler(side: Any) -> Callable[[], float]:
    """Milliseconds a run, of a graph of as many runs as take some 2 ms."""
    side.batch(3)
    once = side.sample(3)
    runs = int(min(40, max(3, 2.0 / max(once, 1e-3))))
    side.batch(runs)
    return lambda: side.sample(runs)


def cuda_work(problem: Any) -> Callable[[int], None]:
    """``work(number)``: the public call, on sets of tensors in turn that together exceed the cache."""
    import torch

    from bench.place import call
    from bench.timer import sets_of

    kind, shaped = getattr(torch, problem.dtype), {name: getattr(problem, name + "_shape") for name in "xwy"}
    sets = [
        {name: torch.randn(shape, device="cuda").to(kind) for name, shape in shaped.items()}
        for _ in range(sets_of(problem.bytes))
    ]

    def work(turn: int) -> None:
        operands = sets[turn % len(sets)]
        call(problem, operands, out=operands[problem.written])

    return work


def offers(problem: Any, info: Any) -> dict[str, tuple[Any, Any, float | None]]:
    """By solver, in the order of choice: the solver, its configuration, and the milliseconds that it predicts."""
    from convdispatch.selection.choice.ranking import rank
    from convdispatch.selection.solver_query import query

    found = {}
    for one in rank(problem, info):
        cost = query(one.solver, problem, info).cost(one.config)
        if cost is not None:
            found[one.solver.name] = one.solver, one.config, 1e3 * cost
    return found


def race(samplers: dict[str, Callable[[], float]], chosen: str) -> dict[str, float]:
    """Median milliseconds of those who raced; of the others the best look."""
    from convdispatch.measurement.measure import Candidate, interleaved

    looks: dict[str, float] = {}
    for name, sample in samplers.items():
        best = min(looks.values(), default=math.inf)
        sample()  # warms up: the first run of a kernel may wait for its compiler, and says nothing
        for _ in range(LOOKS):
            looks[name] = min(looks.get(name, math.inf), sample())
            if looks[name] > 4 * best and name != chosen:
                break
    best = min(looks.values())
    near = [name for name, ms in looks.items() if ms <= NEAR * best or name == chosen]
    rivals = [Candidate(name, samplers[name], looks[name]) for name in near]
    raced = interleaved(rivals, rounds=ROUNDS, budget_ms=RACE_MS, cut_factor=1.2)
    return looks | {name: one.timing.median for name, one in raced.items() if one.timing and one.timing.count >= 3}


def row_of(problem: Any, rivals: dict[str, Any], failed: dict[str, str], times: dict[str, float]) -> dict[str, Any]:
    """A problem's line of the file: the first rival is the chosen one."""
    predicted = {name: one[2] for name, one in rivals.items()}
    configs = {name: dict(one[1]) for name, one in rivals.items() if name in times}
    return {"problem": str(problem), "chosen": next(iter(rivals), None), "ms": times, "predicted": predicted,
            "configs": configs, "failed": failed}  # fmt: skip


def _begin(device: str, compile_only: bool) -> None:
    global _given
    os.environ["CONVDISPATCH_DB"] = tempfile.mkdtemp()  # nothing was measured
    os.environ.setdefault("CONVDISPATCH_RATES", "off")
    _given = device, compile_only, Path(tempfile.gettempdir(), "convdispatch-regret.lock").open("w")  # noqa: SIM115


def _task(text: str) -> dict[str, Any]:
    from convdispatch.api import ConvProblem

    device, compile_only, lock = _given
    problem = ConvProblem.parse(text)
    return on_cuda(problem, lock, compile_only) if device == "cuda" else on_device(problem, device, compile_only)


def ranking(problems: dict[str, list[Any]], others: dict[str, list[Any]]) -> Iterator[str]:
    """Lines: by device, the milliseconds of a choice, and the number and microseconds of its queries; ``others`` are
    chosen for before, so that solvers are imported."""
    from convdispatch.selection import solver_query
    from convdispatch.selection.choice.ranking import Choices
    from convdispatch.tools.targets.described import DESCRIBED

    spent: dict[str, list[float]] = defaultdict(list)
    answer = solver_query.SolverAnswers._answer

    def timed(answers: Any, method: str, *given: Any) -> Any:
        start = time.perf_counter()
        try:
            return answer(answers, method, *given)
        finally:
            spent[method].append(time.perf_counter() - start)

    solver_query.SolverAnswers._answer = timed
    for name in RANKED:
        device = DESCRIBED[name]
        for chosen in others[device.type]:
            Choices(chosen, device)
        spent.clear()
        begun = time.perf_counter()
        for chosen in problems[device.type]:
            Choices(chosen, device)
        each_ms, count = 1e3 * (time.perf_counter() - begun) / len(problems[device.type]), len(problems[device.type])
        of_problems = [seconds for method, times in spent.items() if method != "serves" for seconds in times]
        every = [seconds for times in spent.values() for seconds in times]
        methods = ", ".join(f"{method} {1e6 * statistics.mean(times):.0f}" for method, times in sorted(spent.items()))
        yield (
            f"{name}: {count} problems, {each_ms:.1f} ms each; {len(every) / count:.0f} queries of "
            f"{1e6 * statistics.mean(every):.0f} us, {len(of_problems) / count:.0f} without serves of "
            f"{1e6 * statistics.mean(of_problems):.0f} us ({methods})"
        )
    solver_query.SolverAnswers._answer = answer


# --- what is said ----------------------------------------------------------------------------------------------------


def report(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines: chosen over best, the worst, and by solver how its cost stood."""
    complete = [row for row in rows if len(row["ms"]) > 1 and row["chosen"] in row["ms"]]
    if not complete:
        yield "nothing was measured"
        return
    best = {row["problem"]: min(row["ms"], key=row["ms"].__getitem__) for row in complete}
    regret = {row["problem"]: row["ms"][row["chosen"]] / row["ms"][best[row["problem"]]] for row in complete}
    ordered = sorted(regret.values())
    p95 = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    whole = f"chosen over best {mean(ordered):.3f}, 95th percentile {p95:.3f}, worst {ordered[-1]:.3f}"
    yield f"{len(complete)} problems: {whole}"
    for row in sorted(complete, key=lambda row: -regret[row["problem"]])[:8]:
        winner, ms, said = best[row["problem"]], row["ms"], row["predicted"]
        yield (
            f"  {regret[row['problem']]:.2f} {row['problem']}: {row['chosen']} {ms[row['chosen']]:.4g} ms (predicted "
            f"{said[row['chosen']] or 0:.3g}), {winner} {ms[winner]:.4g} (predicted {said[winner] or 0:.3g})"
        )
    paces, chosen, missed = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in complete:
        logs = {name: math.log(ms / row["predicted"][name]) for name, ms in row["ms"].items() if row["predicted"][name]}
        level = statistics.median(logs.values()) if logs else 0.0
        for name, log in logs.items():
            paces[name].append(log - level)
        if regret[row["problem"]] > 1.02:
            chosen[row["chosen"]].append(regret[row["problem"]])
            missed[best[row["problem"]]].append(regret[row["problem"]])
    yield "solver: its time over its prediction beside the others' (mean, spread, problems); chosen wrongly; missed"
    for name in sorted(paces, key=lambda name: -math.log(max(1, mean(chosen[name]) * mean(missed[name])))):
        spread = statistics.pstdev(paces[name])
        yield (
            f"  {name}: {math.exp(statistics.fmean(paces[name])):.2f}, {math.exp(spread):.2f}, {len(paces[name])}; "
            f"chosen {len(chosen[name])} times at {mean(chosen[name]):.2f}; missed {len(missed[name])} times at "
            f"{mean(missed[name]):.2f}"
        )
    for name, count in sorted(_failures(rows).items()):
        yield f"  {name} failed {count} times"


def _failures(rows: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        for name, why in row["failed"].items():
            counts[f"{name} ({why[:60]})"] += 1
    return counts


def mean(values: list[float]) -> float:
    """Geometric; 1 of none."""
    return statistics.geometric_mean(values) if values else 1.0


@click.command(help=__doc__)
@click.option("--device", default="intel", show_default=True, help="An OpenCL device, or cuda.")
@click.option("--target", help="Compile a CPU's kernels for another processor: core-avx2.")
@click.option("--count", default=40, show_default=True, help="Problems a kind.")
@click.option("--seed", default=2, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), default=["float32"], show_default=True)
@click.option("--seconds", default=3600.0, show_default=True, help="Most of this run.")
@click.option("--jobs", type=int, help="Processes; on cuda 12, else 1.")
@click.option("--into", type=click.Path(path_type=Path), help="Else beside the caller, by device, target and seed.")
@click.option("--compile", "compile_only", is_flag=True, help="Measure nothing.")
@click.option("--ranking", "ranks", is_flag=True, help="Time the choice itself, on described devices.")
def main(
    device: str, target: str | None, count: int, seed: int, kinds: tuple[str, ...], seconds: float, jobs: int | None,
    into: Path | None, compile_only: bool, ranks: bool,
) -> None:  # fmt: skip
    if ranks:
        _begin(device, compile_only)
        problems, others = (
            {of: [p for kind in kinds for p in itertools.islice(drawn(of, kind, each), most)] for of in ("cpu", "gpu")}
            for each, most in ((seed, count), (seed + 1, 4))
        )
        print("\n".join(ranking(problems, others)))
        return
    begun, where = time.monotonic(), f"{device}{f'-{target}' if target else ''}"
    into = into or Path(f"regret-{where}-{seed}.jsonl")
    if target:  # whose code is no other's: caches know the device alone
        narrow = {"CL_CONFIG_CPU_TARGET_ARCH": target, "PYOPENCL_NO_CACHE": "1", "CONVDISPATCH_BLOCK": "amx,int8"}
        os.environ |= narrow | {"CONVDISPATCH_KERNEL_CACHE": str(into.resolve()) + f".{target}"}
    done = {row["problem"]: row for row in read_rows(into)}
    wanted = {kind: _texts("gpu" if device == "cuda" else "cpu", kind, seed, count) for kind in kinds}
    turns = itertools.chain.from_iterable(zip(*wanted.values()))
    tasks = [text for text in turns if text not in done]
    jobs = jobs or (12 if device == "cuda" else 1)
    for row in farm(jobs, _begin, (device, compile_only), _task, tasks, until=begun + seconds, task_s=TASK_S):
        if isinstance(row, Lost):
            if row.why != "out of time":
                print(f"LOST {row.task}: {row.why}", flush=True)
        elif not compile_only:
            done[row["problem"]] = row
            append_row(into, row)
    for kind, texts in wanted.items():
        rows = [done[text] for text in texts if text in done]
        print(f"{where} {kind} seed {seed}: {len(rows)} of {len(texts)} problems")
        print("\n".join(report(rows)), flush=True)
    print(f"{time.monotonic() - begun:.0f} s")


def _texts(device: str, kind: str, seed: int, count: int) -> list[str]:
    return [str(problem) for problem in itertools.islice(drawn(device, kind, seed), count)]


if __name__ == "__main__":
    main()
