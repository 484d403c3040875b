"""Compare images' bits between batches under ``policy(batch_invariant=True)``, and time what that costs at batch 32.

python -m bench batch_invariant                              # layers by a seed and the catalogue's nets, CPU
python -m bench batch_invariant --seconds 120 --nets lenet   # fewer
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator

import click
import numpy as np

from bench.calls import call
from bench.drawn import drawn
from convdispatch import ConvProblem, inference, policy
from convdispatch.device import runtime
from convdispatch.measurement.search.trialdata import random_operands
from convdispatch.models import catalogue

BATCHES = (1, 2, 3, 5, 17, 64)
"""Images of the batches whose results are compared with those of the whole."""
NET_BATCHES = (1, 3, 17)
"""The same for nets, of which each size is a form of its own to compile."""
WHOLE = 64
"""Images of the batch that the others are cut out of."""
TIMED = 32
"""Images of the batch at which the choice for every batch is timed beside the free one."""
LEAST_S = 0.02
"""Seconds of one timed sample, which repeats short calls."""
ROUNDS = 5
"""Samples of each side, taken in turns; the least of each counts, because other work only adds time."""


def compared(
    compute: Callable[[np.ndarray], np.ndarray], given: np.ndarray, batches: tuple[int, ...], turns: int
) -> tuple[int, int]:
    """Images that were compared, and those of them whose bits differ. ``turns``: places of each batch in the whole."""
    whole, count, wrong = compute(given), 0, 0
    for images in (n for n in batches if n <= len(given)):
        for turn in range(turns if images < len(given) else 1):
            start = (7 * turn + images) % max(1, len(given) - images + 1)
            part = compute(np.ascontiguousarray(given[start : start + images]))
            wrong += sum(part[i].tobytes() != whole[start + i].tobytes() for i in range(images))
            count += images
    return count, wrong


def ratio(free: Callable[[], object], invariant: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The time of the second over the time of the first."""
    least, calls = [math.inf, math.inf], []
    for run in (free, invariant):
        run()
        begin = time.perf_counter()
        run()
        calls.append(max(1, round(LEAST_S / max(time.perf_counter() - begin, 1e-6))))
    for _, side in itertools.product(range(rounds), (0, 1)):
        begin = time.perf_counter()
        for _ in range(calls[side]):
            (free, invariant)[side]()
        least[side] = min(least[side], (time.perf_counter() - begin) / calls[side])
    return least[1] / least[0]


def layers(seed: int) -> Iterator[ConvProblem]:
    """Layers without end, forward and data gradient, of families that a generator draws."""
    for problem in drawn("cpu", "float32", seed):
        plain = problem.replace(mb=WHOLE, bias=False, residual=False, activation=None, constant_weights=False)
        if plain.direction != "bwd_weights" and plain.flops < 4e9 and plain.bytes < 64 << 20:
            yield plain


def call_of(problem: ConvProblem) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """A function of images that computes a layer, and images."""
    operands = random_operands(problem, 1)
    source = "x" if problem.direction == "fwd" else "y"
    return lambda images: call(problem, {source: images, "w": operands["w"]}), operands[source]


def under(invariant: bool, compute: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """``compute`` under the policy, or without it."""

    def run(given: np.ndarray) -> np.ndarray:
        with policy(batch_invariant=invariant):
            return compute(given)

    return run


def net_of(name: str) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """A function of images that runs a net in a form for their number, built once each; and images."""
    net, forms = catalogue.create(name), dict[tuple, inference.InferenceNet]()
    channels, side = getattr(net, "CHANNELS", 3), getattr(net, "SIZE", 224)

    def run(given: np.ndarray) -> np.ndarray:
        from convdispatch.api.policy import current_policy

        key = given.shape, current_policy().is_invariant
        if key not in forms:
            forms[key] = inference.build(net, given.shape)
        return np.asarray(forms[key](given))

    images = np.random.default_rng(2).standard_normal((WHOLE, channels, side, side)).astype(np.float32)
    return run, images


@click.command()
@click.option("--seconds", default=150.0, help="Seconds for the layers.")
@click.option("--seed", default=54)
@click.option("--nets", default=",".join(catalogue.names()), help="Names, separated by commas.")
@click.option("--net-seconds", default=180.0, help="Seconds after which no further net is begun.")
@click.option("--images", default=TIMED, help="Images of the whole batch of a net.")
def main(seconds: float, seed: int, nets: str, net_seconds: float, images: int) -> None:
    """Print comparisons, images that differ, and the mean of time over time at batch 32."""
    print(runtime.device_info(runtime.find_device("cpu")))
    begin, total, wrong, ratios = time.perf_counter(), 0, 0, []
    for problem in layers(seed):
        compute, given = call_of(problem)
        count, differ = compared(under(True, compute), given, BATCHES, 2)
        total, wrong = total + count, wrong + differ
        if differ:
            print(f"{problem}: {differ} of {count} images differ")
        few = np.ascontiguousarray(given[:TIMED])
        ratios.append(ratio(lambda c=compute, x=few: under(False, c)(x), lambda c=compute, x=few: under(True, c)(x)))
        if time.perf_counter() - begin > seconds:
            break
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"{len(ratios)} layers: {total} images compared, {wrong} differ; time at batch {TIMED} over the free one's: "
          f"{mean:.3f} in the mean, {statistics.median(ratios):.3f} median, {max(ratios):.2f} worst")  # fmt: skip
    begin = time.perf_counter()
    for name in filter(None, nets.split(",")):
        if time.perf_counter() - begin > net_seconds:
            print(f"{name}: left out, the time is over")
            continue
        compute, given = net_of(name)
        given = given[:images]
        count, differ = compared(under(True, compute), given, NET_BATCHES, 2)
        few = np.ascontiguousarray(given[:TIMED])
        cost = ratio(lambda c=compute, x=few: under(False, c)(x), lambda c=compute, x=few: under(True, c)(x), 3)
        total, wrong = total + count, wrong + differ
        print(f"{name}: {count} images compared, {differ} differ; time at batch {len(few)}: {cost:.3f}", flush=True)
    print(f"all: {total} images compared, {wrong} differ")


if __name__ == "__main__":
    main()
