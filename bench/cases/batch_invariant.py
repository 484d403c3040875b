"""Compare images' bits between batches under ``policy(batch_invariant=True)``, and time what that costs at batch 32.

python -m bench batch_invariant                              # layers by a seed and the catalogue's nets, CPU
python -m bench batch_invariant --seconds 120 --nets lenet   # fewer
python -m bench batch_invariant --device cuda --kind float32 --kind tf32 --kind half   # PyTorch's tensors on CUDA
python -m bench batch_invariant --device nvidia --nets ""    # the same GPU's OpenCL, layers alone

On a GPU layers are of the sizes that ``drawn`` has for GPUs. Processes compare side by side; then this process alone
times, by the device: calls in CUDA graphs on ``cuda``, plans on an OpenCL queue, of nets runs behind a busy stream.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click
import numpy as np

from bench.cases.choice import cuda_work, mean, race
from bench.drawn import KINDS, drawn
from bench.place import Place, call
from bench.timer import graph_side, host_seconds, medians, stream_side
from bench.workers import Lost, farm
from convdispatch import ConvDispatchError, ConvProblem, inference, policy
from convdispatch.device import runtime
from convdispatch.measurement.search.trial import Harness
from convdispatch.measurement.search.trialdata import random_operands
from convdispatch.models import catalogue
from convdispatch.selection import dispatch
from convdispatch.selection.choice.ranking import rank

BATCHES = (1, 2, 3, 5, 17, 64)
"""Images of the batches whose results are compared with those of the whole."""
NET_BATCHES = (1, 3, 17)
"""The same for nets, of which each size is a form of its own to compile."""
WHOLE = 64
"""Images of the batch that the others are cut out of."""
TURNS = 2
"""Positions in the whole at which each batch is cut out."""
TIMED = 32
"""Images of the batch at which the choice for every batch is timed beside the free one."""
LEAST_S = 0.02
"""Seconds of one timed sample, which repeats short calls."""
ROUNDS = 5
"""Samples of each side, taken in turns; the least of each counts, because other work only adds time."""
MOST_FLOPS = {"cpu": 4e9, "gpu": 1e11}
"""A layer of more operations on the whole batch is passed over."""
MOST_BYTES = {"cpu": 64 << 20, "gpu": 128 << 20}
"""A layer whose tensors take more bytes on the whole batch is passed over."""
WORST = 5
"""Layers that are named with their ratio of times."""

Compute = Callable[[Any], Any]
"""A function of images where the device has them that returns results there."""


def compared(
    place: Place, compute: Compute, images: np.ndarray, batches: tuple[int, ...], turns: int = TURNS
) -> tuple[int, int]:
    """Images that were compared, and those of them whose bits differ. ``turns``: positions of each batch."""

    def result(part: np.ndarray) -> np.ndarray:
        with policy(batch_invariant=True):
            return place.fetch(compute(place.bring(np.ascontiguousarray(part))))

    whole, count, wrong = result(images), 0, 0
    for size in (n for n in batches if n <= len(images)):
        for turn in range(turns if size < len(images) else 1):
            start = (7 * turn + size) % max(1, len(images) - size + 1)
            part = result(images[start : start + size])
            wrong += sum(part[i].tobytes() != whole[start + i].tobytes() for i in range(size))
            count += size
    return count, wrong


def wall_ratio(free: Callable[[], object], invariant: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The time of the second over the time of the first, by this process's clock."""
    sides, times = (free, invariant), ([], [])
    for run in sides:
        run()
    calls = [max(1, round(LEAST_S / max(host_seconds(run, 1), 1e-6))) for run in sides]
    for _, side in itertools.product(range(rounds), (0, 1)):
        times[side].append(host_seconds(sides[side], calls[side]))
    return min(times[1]) / min(times[0])


def layers(kind: str, seed: int, number: str = "float32") -> Iterator[ConvProblem]:
    """Layers without end, forward and data gradient, of families that a generator draws."""
    for problem in drawn(kind, number, seed):
        plain = problem.replace(mb=WHOLE, bias=False, residual=False, activation=None, constant_weights=False)
        fits = plain.flops < MOST_FLOPS[kind] and plain.bytes < MOST_BYTES[kind]
        if plain.direction != "bwd_weights" and fits:
            yield plain


def call_of(place: Place, problem: ConvProblem) -> tuple[Compute, np.ndarray]:
    """A function of images that computes a layer, and images."""
    operands = random_operands(problem, 1)
    source = "y" if problem.direction == "bwd_data" else "x"
    held = {name: place.bring(array) for name, array in operands.items() if name not in (source, "initial")}
    return lambda images: call(problem, {source: images, **held}), operands[source]


def under(asked: bool, compute: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """``compute`` of the arguments and those that it is called with, under the policy or without it."""

    def run(*more: Any) -> Any:
        with policy(batch_invariant=asked):
            return compute(*arguments, *more)

    return run


def choice_of(place: Place, problem: ConvProblem) -> Any:
    """The solver and configuration that the policy in force has for a problem."""
    return rank(problem, runtime.device_info(place.queue.device))[0]


def layer_ratio(place: Place, problem: ConvProblem) -> float:
    """A layer's time under the policy over that of the free choice; 1 where both choices are the same."""
    choices = {str(asked): under(asked, choice_of, place, problem)() for asked in (False, True)}
    solvers, configs = zip(*((each.solver.name, each.config) for each in choices.values()))
    if solvers[0] == solvers[1] and configs[0] == configs[1]:
        return 1.0
    if place.name == "cpu":
        call = call_of(place, problem)
        return wall_ratio(*(under(asked, *call) for asked in (False, True)))
    if place.name == "cuda":
        work = cuda_work(problem)
        times = medians({str(asked): graph_side(under(asked, work)) for asked in (False, True)})
    else:
        harness, samplers = Harness(problem, place.queue), {}
        for asked, choice in choices.items():
            prepared = dispatch.make(choice.solver, choice.config, problem, place.queue.context)
            samplers[asked] = harness.sampler(prepared, 1.0)
        times = race(samplers, "False")
    return times["True"] / times["False"]


def net_of(place: Place, name: str, dtype: str) -> tuple[Compute, np.ndarray]:
    """A function of images that runs a net in a form for their number, built once each; and images."""
    from convdispatch.api.policy import current_policy

    net, forms = catalogue.create(name), dict[tuple, inference.InferenceNet]()
    channels, side = getattr(net, "CHANNELS", 3), getattr(net, "SIZE", 224)

    def run(images: Any) -> Any:
        shape = tuple(images.shape)
        key = shape, current_policy().is_invariant
        if key not in forms:
            forms[key] = inference.build(net, shape, dtype=dtype, queue=place.queue)
        return forms[key](images)

    images = np.random.default_rng(2).standard_normal((WHOLE, channels, side, side)).astype(dtype)
    return run, images


def net_ratio(place: Place, compute: Compute, images: np.ndarray) -> float:
    """The same for a net."""
    given = place.bring(images)
    free, invariant = (under(asked, compute, given) for asked in (False, True))
    if place.name == "cuda":
        sides = {}
        for name, run in (("free", free), ("invariant", invariant)):
            run()
            sides[name] = stream_side(lambda runs, run=run: [run() for _ in range(runs)])
        times = medians(sides, 0.05)
        return times["invariant"] / times["free"]

    def finished(run: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            run()
            if place.kind == "gpu":
                place.queue.finish()

        return call

    return wall_ratio(finished(free), finished(invariant), 3)


_here: dict[str, Place] = {}


def _begin(name: str) -> None:
    _here["place"] = Place(name)


def _compare(text: str) -> tuple[str, int, int, str]:
    """The problem, images compared, images that differ, and the error where one was raised."""
    problem, place = ConvProblem.parse(text), _here["place"]
    try:
        count, wrong = compared(place, *call_of(place, problem), BATCHES)
        for invariant in (False, True):  # Compiles here, beside other processes, what is timed later.
            with policy(batch_invariant=invariant), suppress(ConvDispatchError):
                dispatch.prepare(problem.replace(mb=TIMED), place.queue.context)
    except ConvDispatchError as error:
        return text, 0, 0, str(error)
    return text, count, wrong, ""


@click.command()
@click.option("--device", default="cpu", show_default=True, help="cpu, an OpenCL device's name, or cuda.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), default=["float32"], show_default=True)
@click.option("--layers", "number", default=130, show_default=True, help="Layers, over all kinds.")
@click.option("--seconds", default=100.0, show_default=True, help="Most seconds of the layers' comparisons.")
@click.option("--time-seconds", default=50.0, show_default=True, help="Most seconds of the layers' times.")
@click.option("--seed", default=54, show_default=True)
@click.option("--jobs", type=int, help="Processes that compare layers; on a GPU 12, else 1.")
@click.option("--nets", default=",".join(catalogue.names()), help="Names, separated by commas.")
@click.option("--net-dtype", default="float32", show_default=True)
@click.option("--net-seconds", default=180.0, show_default=True, help="Seconds after which no further net is begun.")
@click.option("--images", default=TIMED, show_default=True, help="Images of the whole batch of a net.")
def main(device: str, nets: str, net_dtype: str, net_seconds: float, images: int, **options: Any) -> None:
    """Print comparisons, images that differ, and the mean of time over time at batch 32."""
    place = Place(device)
    print(runtime.device_info(place.queue.device))
    total, wrong = of_layers(place, **options)
    begin, ratios = time.perf_counter(), []
    for name in filter(None, nets.split(",")):
        if time.perf_counter() - begin > net_seconds:
            print(f"{name}: left out, the time is over")
            continue
        compute, whole = net_of(place, name, net_dtype)
        count, differ = compared(place, compute, whole[:images], NET_BATCHES)
        ratios.append(net_ratio(place, compute, np.ascontiguousarray(whole[: min(images, TIMED)])))
        total, wrong = total + count, wrong + differ
        print(f"{name}: {count} images compared, {differ} differ; time at batch {min(images, TIMED)}: {ratios[-1]:.3f}",
              flush=True)  # fmt: skip
    if ratios:
        print(f"{len(ratios)} nets: {mean(ratios):.3f} in the mean, {max(ratios):.3f} worst")
    print(f"all: {total} images compared, {wrong} differ")


def of_layers(
    place: Place, kinds: tuple[str, ...], number: int, seconds: float, time_seconds: float, seed: int, jobs: int | None
) -> tuple[int, int]:
    """Compare and time layers; returns images that were compared, and those that differ."""
    each = [map(str, itertools.islice(layers(place.kind, seed, kind), -(-number // len(kinds)))) for kind in kinds]
    tasks, compare_until = list(itertools.chain.from_iterable(zip(*each))), time.monotonic() + seconds
    total, wrong, same = 0, 0, []
    for row in farm(jobs or (12 if place.kind == "gpu" else 1), _begin, (place.name,), _compare, tasks,
                    until=compare_until):  # fmt: skip
        if isinstance(row, Lost):
            if row.why != "out of time":
                print(f"{row.task}: {row.why}", flush=True)
            continue
        text, count, differ, error = row
        total, wrong = total + count, wrong + differ
        if differ or error:
            print(f"{text}: {error or f'{differ} of {count} images differ'}", flush=True)
        else:
            same.append(text)
    print(f"{len(same)} of {len(tasks)} layers: {total} images compared, {wrong} differ", flush=True)
    ratios, until = dict[str, float](), time.monotonic() + time_seconds
    for text in same:
        try:
            ratios[text] = layer_ratio(place, ConvProblem.parse(text).replace(mb=TIMED))
        except Exception as error:  # A library's plan that a graph cannot capture, say.
            print(f"{text}: no time: {type(error).__name__}: {str(error)[:200]}", flush=True)
        if time.monotonic() > until:
            break
    if ratios:
        values = list(ratios.values())
        print(f"{len(values)} layers: time at batch {TIMED} over the free one's: {mean(values):.3f} in the mean, "
              f"{statistics.median(values):.3f} median, {max(values):.2f} worst; the same choice in "
              f"{values.count(1.0)}", flush=True)  # fmt: skip
    for text in sorted(ratios, key=lambda text: -ratios[text])[:WORST]:
        print(f"  {ratios[text]:.2f} {text}", flush=True)
    return total, wrong


if __name__ == "__main__":
    main()
