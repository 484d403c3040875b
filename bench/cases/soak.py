"""A long run of random problems: every solver pinned in turn computes each through the public calls, against float64.

    python -m bench soak --minutes 60                      # the default device
    python -m bench soak --minutes 60 --device pocl --seed 7
    python -m bench soak --problem fwd_f32_mb1ic3ih8iw8oc4kh3kw3   # one problem again, as a failure names it
    python -m bench soak --minutes 30 --kept 4   # caches so small that they are full at once: what grows then leaks

Each problem follows from the seed and its number alone.

Ranks, groups, strides, dilations, paddings by side, dtypes, layouts, ``math``, epilogues and directions are drawn at
random, as are NumPy or device arrays, and whole numbers (exact where the solver claims it) or normal ones. The output
is full of NaN and lies between guard zones. Counted beside wrong results: resident memory, file descriptors, threads.
The exit status is 1 where a result was wrong, a call failed, or one of the three grew beyond its bound.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import fnmatch
import itertools
import json
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.place import call as public_call
from convdispatch import ConvProblem, policy, runtime
from convdispatch.api.activations import ACTIVATIONS
from convdispatch.api.errors import ConvDispatchError, ConvDispatchWarning, InvalidProblem
from convdispatch.api.policy import current_policy
from convdispatch.calls import call_cache  # noqa: F401 (a cache that is there is bounded)
from convdispatch.device.programs import kernels
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.data import Data, allowed, data_for
from convdispatch.measurement.search.trialdata import operands_of
from convdispatch.selection.choice.ranking import contestants, refusal

GUARD = 64
"""Elements before and after an output, which must stay as they are."""
FLOPS = 2e7
"""Most operations of a problem: the reference takes them in float64."""
FEW = 256
"""Outputs up to which a sum may cancel by chance: their error is held against what is summed."""
HANGS_S = 3600
"""Seconds after which a problem is taken to hang; a machine that others share may stop a process for minutes."""
WARM = 0.25
"""Share of the time after which memory is first noted: caches are full by then, or bounded ones nearly so."""
GROWTH_MIB = 48
"""What may come while caches are full: what Python keeps of thousands of problems, and the heap's gaps."""
LATE = 0.75
"""Share of the time after which the least that is held counts: what a single problem holds for a moment is no leak."""


@dataclasses.dataclass
class Count:
    """What a run has come to."""

    problems: int = 0
    results: int = 0
    cancelled: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    solvers: dict[str, int] = dataclasses.field(default_factory=dict)
    worst: dict[str, float] = dataclasses.field(default_factory=dict)
    """By solver: the largest error as a share of what is allowed, on normal data."""


def draw(source: random.Random) -> ConvProblem:
    """Any problem that the public calls can state, small enough for the reference."""
    while True:
        ndim, form = source.choice((1, 2, 2, 2, 2, 3)), source.random()
        g = 1 if form < 0.6 else source.choice((2, 3, 4, 8, 17))
        inner = 1 if form > 0.85 else source.choice((1, 2, 3, 4, 5, 8, 16, 17, 32, 48))
        outer = 1 if form > 0.9 else source.choice((1, 2, 3, 4, 5, 8, 16, 19, 32, 40))
        values: dict[str, Any] = {"ndim": ndim, "mb": source.choice((1, 1, 2, 3, 5)), "g": g}
        values |= {"ic": g * inner, "oc": g * outer}
        usual = source.choice((0, 1, 3, 3, 5, 7))  # square kernels of stride 1 have engines of their own
        for axis in "dhw"[3 - ndim :]:
            values["i" + axis] = source.randint(1, {1: 300, 2: 40, 3: 12}[ndim])
            values["k" + axis] = usual or source.randint(1, 8)
            values["s" + axis] = 1 if usual and source.random() < 0.7 else source.randint(1, 4)
            values["d" + axis] = 1 if source.random() < 0.75 else source.randint(2, 4)
            values["p" + axis] = source.randint(0, values["k" + axis])
            values[f"p{axis}_r"] = values["p" + axis] if source.random() < 0.8 else source.randint(0, 4)
        values["direction"] = source.choice(("fwd", "fwd", "bwd_data", "bwd_weights"))
        values["dtype"] = source.choice(("float32",) * 5 + ("float16", "bfloat16", "float64"))
        values["layout"] = source.choice(("nchw", "nchw", "nhwc"))
        if values["dtype"] == "float32":
            values["math"] = source.choice(("float32", "float32", "ieee", "tf32", "fast"))
        if values["direction"] != "bwd_weights" and source.random() < 0.4:
            values["bias"], values["residual"] = source.random() < 0.5, source.random() < 0.5
            values["activation"] = source.choice((None, "clip(-1,2.5)", "leaky_relu(0.25)", *ACTIVATIONS))
        elif source.random() < 0.2 and values["direction"] == "bwd_weights":
            values["accumulate"] = True
        try:
            problem = ConvProblem(**values)
        except InvalidProblem:
            continue
        if problem.flops <= FLOPS:
            return problem


def call(problem: ConvProblem, data: Data, queue: Any) -> np.ndarray:
    """The public call that a problem describes, into NaN between guards; on device arrays where ``queue`` is one."""
    dtype = next(iter(data.operands.values())).dtype
    held = np.full(int(np.prod(problem.out_shape)) + 2 * GUARD, np.nan, dtype)
    inner = held[GUARD:-GUARD].reshape(problem.out_shape)
    inner[...] = data.operands.get("initial", np.nan)
    arrays = {name: array for name, array in data.operands.items() if name != "initial"}
    if queue is None:
        public_call(problem, arrays, out=inner)
    else:
        import pyopencl.array as cla

        whole = cla.to_device(queue, held)
        out = whole[GUARD : held.size - GUARD].reshape(problem.out_shape)
        on_device = {name: cla.to_device(queue, array) for name, array in arrays.items()}
        public_call(problem, on_device, out=out, queue=queue)
        held = whole.get()
        inner = held[GUARD:-GUARD].reshape(problem.out_shape)
    if not (np.isnan(held[:GUARD]).all() and np.isnan(held[held.size - GUARD :]).all()):
        raise ValueError("written outside the output")
    return inner


def judge(problem: ConvProblem, got: np.ndarray, data: Data, limit: float) -> tuple[float, bool]:
    """The error as a share of the limit, and whether it is of a sum that happened to cancel.

    It is held against the result before its activation, which may cut most of it away but not the sum's rounding.
    """
    difference = np.linalg.norm(got.astype(np.float64) - data.expected)
    if limit == 0:
        return (0.0 if difference == 0 else float("inf")), False
    operands = operands_of(problem, data.operands)
    plain = problem.replace(activation=None)
    size = max(np.linalg.norm(data.expected), np.linalg.norm(reference.compute(plain, **operands)))
    share = float(difference / max(float(size), 1e-300) / limit) if difference else 0.0
    if share <= 1 or data.expected.size > FEW or not np.isfinite(share):
        return share, False
    summed = reference.compute(plain, **{name: np.abs(array) for name, array in operands.items()})
    return float(difference / max(float(np.linalg.norm(summed)), 1e-300) / limit), True


def soak(problem: ConvProblem, kind: str, queue: Any, on_device: bool, only: str, count: Count) -> None:
    """Every solver that takes the problem and whose name fits ``only``, pinned in turn."""
    info = runtime.device_info(queue.device)
    solvers = {name: it for name, it in contestants(problem, info).items() if fnmatch.fnmatchcase(name, only)}
    solvers = {name: solver for name, solver in solvers.items() if not _refused(name, solver, problem, info)}
    if not solvers:
        return
    data = data_for(problem, kind, count.problems)
    data_for.cache_clear()  # no problem comes twice
    count.problems += 1
    for name, solver in solvers.items():
        try:
            with policy(solver=name, fallback=False):
                got = call(problem, data, queue if on_device else None)
                queue.finish()
        except (ConvDispatchError, ConvDispatchWarning, ValueError, RuntimeError) as error:
            count.failed.append(f"{problem} {name} {kind}: {type(error).__name__}: {str(error)[:300]}")
            print(f"FAILED {count.failed[-1]}", flush=True)
            continue
        share, cancelled = judge(problem, got, data, allowed(problem, kind, solver.exact))
        count.results += 1
        count.cancelled += cancelled
        count.solvers[name] = count.solvers.get(name, 0) + 1
        if kind == "real" and share <= 1:
            count.worst[name] = max(share, count.worst.get(name, 0.0))
        if not share <= 1:
            where = "device arrays" if on_device else "NumPy arrays"
            count.wrong.append(
                f"{problem} {name} {kind}, {where}, data of seed {count.problems - 1}: {share:.3g} times"
            )
            print(f"WRONG {count.wrong[-1]} the error allowed", flush=True)


def _refused(name: str, solver: Any, problem: ConvProblem, info: Any) -> str | None:
    with policy(solver=name, fallback=False):
        return refusal(solver, problem, info, current_policy())


def keep_at_most(count: int) -> None:
    """Bound all caches of programs, and of what holds programs, to about so many small programs."""
    os.environ["CONVDISPATCH_CACHE_LIMIT"] = str(count * (kernels.PROGRAM_BYTES + kernels.CALL_BYTES))


def let_go(device: Any) -> None:
    """Give back what waits for its next use: blocks of the pools, and free memory that glibc keeps."""
    runtime.release_memory(device)
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def held() -> dict[str, int]:
    """What the process holds now: MiB of resident memory, file descriptors, threads."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    mib = int(lines["VmRSS"].split()[0]) // 1024
    return {"MiB": mib, "descriptors": len(list(Path("/proc/self/fd").iterdir())), "threads": int(lines["Threads"])}


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--device", help="As CONVDISPATCH_DEVICE names it.")
@click.option("--seed", default=0, show_default=True)
@click.option("--problem", "texts", multiple=True, help="Only this one; may repeat.")
@click.option("--solver", default="*", show_default=True, help="Only solvers of this name; a glob.")
@click.option("--kept", default=None, type=int, help="Programs and plans that stay cached, and no memory.")
@click.option("--most-mib", default=2048, show_default=True, help="Resident memory that counts as a leak.")
def main(minutes: float, device: str | None, seed: int, texts: tuple[str, ...], **options: Any) -> None:
    """Run for so many minutes, or once over the problems named; see the module's text."""
    solver, kept, most_mib = (options[name] for name in ("solver", "kept", "most_mib"))
    faulthandler.enable()
    warnings.simplefilter("error", ConvDispatchWarning)
    warnings.filterwarnings("ignore", message="performance database")
    queue, count = runtime.queue(runtime.find_device(device)), Count()
    if kept:
        keep_at_most(kept)
    began, reported, early, late = time.monotonic(), 0.0, None, None
    most = held()
    print(f"{runtime.device_info(queue.device)}; seed {seed}; {minutes:g} minutes; {held()}", flush=True)
    for text in texts:
        for kind in ("integer", "real"):
            for on_device in (False, True):
                soak(ConvProblem.parse(text), kind, queue, on_device, solver, count)
    numbers = itertools.count()
    while not texts and (spent := time.monotonic() - began) < 60 * minutes:
        source = random.Random(f"{seed} {next(numbers)}")
        problem = draw(source)
        kind, on_device = source.choice(("integer", "real")), source.random() < 0.5
        faulthandler.dump_traceback_later(HANGS_S, exit=True)  # a call that hangs is named by the last line
        soak(problem, kind, queue, on_device, solver, count)
        faulthandler.cancel_dump_traceback_later()
        if kept:
            let_go(queue.device)
        now = held()
        most = {name: max(most[name], now[name]) for name in now}
        if early is None and spent > WARM * 60 * minutes:
            early = now
        if spent > LATE * 60 * minutes:
            late = {name: min((late or now)[name], now[name]) for name in now}
        if spent - reported > 60:
            reported = spent
            print(f"{spent / 60:6.1f} min: {count.problems} problems, {count.results} results, "
                  f"{len(count.wrong)} wrong, {len(count.failed)} failed; {now}", flush=True)  # fmt: skip
    late = late or held()
    early = early or late
    grown = [
        f"{name} {early[name]} to {late[name]}" for name in ("descriptors", "threads") if late[name] > early[name] + 8
    ]
    grown += [f"MiB {early['MiB']} to {late['MiB']}"] if kept and late["MiB"] > early["MiB"] + GROWTH_MIB else []
    grown += [f"MiB {most['MiB']}, above {most_mib}"] if most["MiB"] > most_mib else []
    said = {**dataclasses.asdict(count), "seconds": round(time.monotonic() - began), "seed": seed, "grown": grown}
    said |= {"device": str(runtime.device_info(queue.device)), "early": early, "late": late, "most": most}
    print(json.dumps(said, indent=1), flush=True)
    sys.exit(1 if count.wrong or count.failed or grown else 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:  # tens of thousands of kernels, and nobody's records
        os.environ.setdefault("CONVDISPATCH_KERNEL_CACHE", "off")
        os.environ.setdefault("CONVDISPATCH_DB", folder)
        main()
