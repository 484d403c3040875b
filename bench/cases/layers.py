"""Solvers against a peer, layer by layer: median ms, GFLOP/s and their ratio, and the ratios' geometric mean.

    python -m bench layers --net cpu10 --solver im2col --against torch --direction fwd

Each layer's rivals are timed in turns on random data, each call waited for; a rest after torch lets its threads, which
spin for a while, leave the cores. torch is timed in NCHW and channels_last; the solver in both layouts,
unless ``--layout`` names one; a ratio is best against best (above 1: the solver is faster).
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import ml_dtypes  # noqa: F401 its import makes "bfloat16" a dtype of NumPy's
import numpy as np

from bench.drawn import drawn as draw
from bench.results import markdown
from convdispatch.api import ConvProblem
from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.measurement import shapes
from convdispatch.selection import dispatch
from convdispatch.selection.plugins.loader import plugins

Work = Callable[[], None]
REST_S = 0.25
"""OpenMP's threads spin for up to 0.2 s by default."""
TURN_S = 0.03
"""Of calls in a row."""


def solver_work(problem: ConvProblem, name: str | None, config: int | None) -> tuple[str, Work]:
    """What runs the problem once on the default device and waits: (solver and configuration, function)."""
    import pyopencl as cl

    queue = runtime.queue()
    info = runtime.device_info(queue.device)
    if config is None:
        prepared = dispatch.prepare(problem, queue.context, Policy(solver=name))
    else:
        solver = plugins().solvers[name]
        choice = list(solver.configs(problem, info))[config]
        prepared = dispatch.make(solver, choice, problem, queue.context)
    random = np.random.default_rng(0)

    def memory(shape: tuple[int, ...]) -> cl.Buffer:
        values = random.standard_normal(shape, dtype=np.float32).astype(problem.dtype)
        return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=values)

    x, w, y = (memory(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
    if prepared.packed_size:
        packed = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, prepared.packed_size)
        prepared.plan.pack(queue, w, packed).wait()
        w = packed

    def work() -> None:
        prepared.enqueue(queue, x, w, y)
        queue.finish()

    return f"{prepared.solver.name} {dict(prepared.config)}", work


def torch_work(problem: ConvProblem) -> Work:
    """The same in torch on two threads, or as many as the device has cores, in the problem's layout."""
    import torch

    torch.set_num_threads(runtime.device_info(runtime.default_device()).compute_units)
    form = {"memory_format": torch.channels_last} if problem.layout == "nhwc" and problem.ndim == 2 else {}
    plain = problem.replace(layout="nchw")
    kind = getattr(torch, problem.dtype)
    x, w, y = (
        torch.randn(shape).to(kind).contiguous(**form) for shape in (plain.x_shape, plain.w_shape, plain.y_shape)
    )
    near = [getattr(problem, "p" + axis) for axis in problem.axes]
    far = [getattr(problem, f"p{axis}_r") for axis in problem.axes]
    if near != far:
        raise click.ClickException(f"torch cannot pad one side only: {problem}")
    stride, spread = ([getattr(problem, letter + axis) for axis in problem.axes] for letter in "sd")
    wanted = [problem.direction == "bwd_data", problem.direction == "bwd_weights", False]

    def work() -> None:
        if problem.direction == "fwd":
            torch.convolution(x, w, None, stride, near, spread, False, [0] * problem.ndim, problem.g)
        else:
            torch.ops.aten.convolution_backward(
                y, x, w, None, stride, near, spread, False, [0] * problem.ndim, problem.g, wanted
            )

    return work


def interleaved(works: dict[str, Work], seconds: float, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, in turns of some calls in a row, for some seconds and at least some rounds.

    A turn's first call does not count: it finds cores that have slept and caches that hold another's numbers, and takes
    up to four times as long as those that follow.
    """
    for work in works.values():
        work()
    time.sleep(REST_S)
    samples: dict[str, list[float]] = {name: [] for name in works}
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turns < rounds:
        turns += 1
        for name, work in works.items():
            work()
            stop, count = time.perf_counter() + TURN_S, 0
            while count < 3 or time.perf_counter() < stop:
                start = time.perf_counter_ns()
                work()
                samples[name].append((time.perf_counter_ns() - start) / 1e6)
                count += 1
            if name.startswith(tuple(PEERS)):
                time.sleep(REST_S)
    return {name: statistics.median(values) for name, values in samples.items()}


def jax_work(problem: ConvProblem) -> Work:
    """The same by XLA, compiled; JAX has no layouts of memory, so NHWC is its dimension numbers."""
    import jax

    letters = "NC" + "HWD"[: problem.ndim] if problem.layout == "nchw" else "N" + "HWD"[: problem.ndim] + "C"
    numbers = (letters, "OI" + "HWD"[: problem.ndim], letters)
    plain = [shape if problem.layout == "nchw" else (shape[0], *shape[2:], shape[1]) for shape in
             (problem.replace(layout="nchw").x_shape, problem.replace(layout="nchw").y_shape)]  # fmt: skip
    random = np.random.default_rng(0)
    w_shape = problem.replace(layout="nchw").w_shape
    x, y, w = (
        jax.numpy.asarray(random.standard_normal(shape, np.float32), problem.dtype) for shape in (*plain, w_shape)
    )
    pads = [(getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")) for axis in problem.axes]
    stride, spread = ([getattr(problem, letter + axis) for axis in problem.axes] for letter in "sd")

    def forward(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, stride, pads, rhs_dilation=spread, dimension_numbers=numbers, feature_group_count=problem.g
        )  # fmt: skip

    run, arrays = {
        "fwd": (forward, (x, w)),
        "bwd_data": (lambda w, y: jax.vjp(lambda x: forward(x, w), x)[1](y)[0], (w, y)),
        "bwd_weights": (lambda x, y: jax.vjp(lambda w: forward(x, w), w)[1](y)[0], (x, y)),
    }[problem.direction]
    compiled = jax.jit(run)
    return lambda: jax.block_until_ready(compiled(*arrays))


PEERS = {"torch": torch_work, "jax": jax_work}


def layers(net: str, only: str | None) -> Iterator[tuple[str, ConvProblem, int]]:
    """The net's layers: name, problem, how often."""
    for entry in shapes.load(net):
        if only is None or any(part in entry.name for part in only.split(",")):
            yield entry.name, entry.problem, entry.count


def drawn_layers(count: int, seed: int) -> Iterator[tuple[str, ConvProblem, int]]:
    """Layers of families by a seed (``bench.drawn``), in two spatial axes with padding that PyTorch has."""
    problems = (p for p in draw("cpu", "float32", seed) if p.ndim == 2 and (p.ph, p.pw) == (p.ph_r, p.pw_r))
    for problem in itertools.islice(problems, count):
        plain = problem.replace(direction="fwd", layout="nchw", constant_weights=False)
        yield str(plain), plain, 1


@click.command(help=__doc__)
@click.option("--net", default="cpu10", show_default=True, help="a table of convdispatch.measurement.shapes")
@click.option("--drawn", type=int, default=0, help="so many forward layers that nobody chose, instead of a net's")
@click.option("--seed", default=0, show_default=True, help="of the layers that are drawn")
@click.option("--only", help="layers whose name contains one of these words, parted by commas")
@click.option("--solver", help="a solver's name or glob; dispatch's choice otherwise")
@click.option("--config", type=int, help="the solver's configuration by its place, instead of the default")
@click.option("--against", type=click.Choice([*PEERS, "nothing"]), default="torch", show_default=True)
@click.option("--direction", type=click.Choice(["fwd", "bwd_data", "bwd_weights"]), default="fwd", show_default=True)
@click.option("--layout", type=click.Choice(["nchw", "nhwc"]), help="the solver's layout; both otherwise")
@click.option("--dtype", default="float32", show_default=True)
@click.option("--mb", type=int, help="another batch size")
@click.option("--constant/--no-constant", default=True, show_default=True, help="weights packed beforehand")
@click.option("--seconds", default=1.0, show_default=True, help="time a layer")
@click.option("--json", "path", type=click.Path(path_type=Path), help="write the figures there too")
@click.option("--show-config", is_flag=True, help="print what ran")
def main(
    net: str, drawn: int, seed: int, only: str | None, solver: str | None, config: int | None, against: str,
    direction: str, layout: str | None, dtype: str, mb: int | None, constant: bool, seconds: float, path: Path | None,
    show_config: bool,
) -> None:  # fmt: skip
    layouts = [layout] if layout else ["nchw", "nhwc"]
    print(f"{net} {direction} {dtype}, {runtime.device_info(runtime.default_device())}, ms")
    peers = [f"{against} nchw", f"{against} nhwc", "ratio"] if against in PEERS else []
    ratios, rows, lines = [], [], []
    chosen = layers(net, only) if not drawn else drawn_layers(drawn, seed)
    for name, plain, count in chosen:
        flags = {"constant_weights": constant and direction != "bwd_weights", "mb": mb or plain.mb}
        problem = plain.replace(direction=direction, dtype=dtype, **flags)
        works = {}
        for each in layouts:
            ran, works[each] = solver_work(problem.replace(layout=each), solver, config)
            if show_config:
                print(name, each, ran)
        if against in PEERS:
            theirs = {f"{against} {each}": PEERS[against](problem.replace(layout=each)) for each in ("nchw", "nhwc")}
            works |= theirs
        times = interleaved(works, seconds, 5)
        ours = min(times[each] for each in layouts)
        cells = [f"{value:.2f}" for value in times.values()]
        if against in PEERS:
            ratios.append(min(times[each] for each in theirs) / ours)
            cells.append(f"{ratios[-1]:.2f}")
        lines.append([name, *cells, f"{problem.flops / ours / 1e6:.0f}"])
        rows.append({"layer": name, "problem": str(problem), "count": count, "ms": times})
    print(markdown(["layer", *layouts, *peers, "GFLOP/s"], lines))
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"geometric mean of the ratios: {mean:.3f}")
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
