"""Time layers under ``policy(strict_nan=True)`` beside the free choice, at batches 1 and 32.

python -m bench strict_nan                # layers by a seed, all directions, NumPy's arrays on the CPU
python -m bench strict_nan --device cuda  # PyTorch's tensors on CUDA
"""

from __future__ import annotations

import time
from collections import defaultdict

import click

from bench.cases.batch_invariant import MOST_BYTES, MOST_FLOPS, layer_ratio
from bench.cases.choice import mean
from bench.drawn import drawn
from bench.place import Place
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime

BATCHES = (1, 32)


@click.command()
@click.option("--device", default="cpu", show_default=True, help="cpu, an OpenCL device's name, or cuda.")
@click.option("--seconds", default=150.0, show_default=True, help="Seconds after which no further layer is begun.")
@click.option("--seed", default=54, show_default=True)
def main(device: str, seconds: float, seed: int) -> None:
    """Print the mean of time over time by batch and direction, and how many layers have another solver."""
    place, ratios = Place(device), defaultdict[tuple[int, str], list[float]](list)
    print(runtime.device_info(place.queue.device))
    until = time.monotonic() + seconds
    for problem in drawn(place.kind, "float32", seed):
        plain = problem.replace(mb=1, bias=False, residual=False, activation=None, constant_weights=False)
        largest = plain.replace(mb=max(BATCHES))
        if largest.flops < MOST_FLOPS[place.kind] and largest.bytes < MOST_BYTES[place.kind]:
            for images in BATCHES:
                ratios[images, plain.direction].append(layer_ratio(place, plain.replace(mb=images), "strict_nan"))
        if time.monotonic() > until:
            break
    for images in BATCHES:
        for name, directions in (*((each, (each,)) for each in DIRECTIONS), ("all", DIRECTIONS)):
            values = [value for each in directions for value in ratios[images, each]]
            if values:
                print(f"batch {images}, {name}: {len(values)} layers, {mean(values):.3f} in the mean, "
                      f"{max(values):.2f} worst; another choice in {len(values) - values.count(1.0)}")  # fmt: skip


if __name__ == "__main__":
    main()
