"""Layers in three directions by JAX: XLA's own convolutions and ours, in turns in one run.

``python bench/jax_layers.py [--rounds 7] [--json FILE] [--batch 4] [--only TEXT] [--table]``

Each side is one compiled function of arrays that lie on the device; a time is the median over rounds of the least of
some calls, a ratio XLA's time over ours. Gradients are those of ``jax.vjp`` for a gradient of y that is given.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import jax
import numpy as np
from jax import lax

import convdispatch.jax as ours

NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")
LAYERS = {
    "stem 7x7 s2": (NHWC, 3, 64, 224, 7, 2, 1),
    "64 3x3 56": (NHWC, 64, 64, 56, 3, 1, 1),
    "64-256 1x1 56": (NHWC, 64, 256, 56, 1, 1, 1),
    "128 3x3 s2 56": (NHWC, 128, 128, 56, 3, 2, 1),
    "256 3x3 14": (NHWC, 256, 256, 14, 3, 1, 1),
    "512-2048 1x1 7": (NHWC, 512, 2048, 7, 1, 1, 1),
    "144 depthwise 56": (NHWC, 144, 144, 56, 3, 1, 144),
    "128 g32 28": (NHWC, 128, 128, 28, 3, 1, 32),
    "64 5x5 28 nchw": (NCHW, 64, 64, 28, 5, 1, 1),
    "128 3x3 28 nchw": (NCHW, 128, 128, 28, 3, 1, 1),
}
"""Name to dimension numbers, channels in and out, size, kernel, stride, groups."""
DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
SAMPLE_S = 0.15


def functions(convolution, layer, batch):
    """By direction, a compiled function and its arrays."""
    numbers, ic, oc, size, kernel, stride, groups = layer
    rng = np.random.default_rng(0)

    def array(spec, sizes):
        return jax.device_put(rng.standard_normal([sizes[letter] for letter in spec], np.float32))

    x = array(numbers[0], {"N": batch, "C": ic, "H": size, "W": size})
    w = array(numbers[1], {"O": oc, "I": ic // groups, "H": kernel, "W": kernel})

    def forward(x, w):
        return convolution(
            x, w, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )  # fmt: skip

    dy = jax.device_put(rng.standard_normal(jax.eval_shape(forward, x, w).shape, np.float32))
    return {
        "fwd": (jax.jit(forward), (x, w)),
        "bwd_data": (jax.jit(lambda w, dy: jax.vjp(lambda x: forward(x, w), x)[1](dy)[0]), (w, dy)),
        "bwd_weights": (jax.jit(lambda x, dy: jax.vjp(lambda w: forward(x, w), w)[1](dy)[0]), (x, dy)),
    }


def least(run) -> float:
    run()
    found, until = [], time.perf_counter() + SAMPLE_S
    while len(found) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def table(rows) -> str:
    """Both times by layer and direction, and their ratio."""
    lines = ["| layer | " + " | ".join(f"{each}: XLA / ours, ms" for each in DIRECTIONS) + " |", "|---|---|---|---|"]
    for name in dict.fromkeys(row["layer"] for row in rows):
        pairs = [(row["xla_ms"], row["ms"]) for row in rows if row["layer"] == name]
        cells = [f"{theirs:.2f} / {mine:.2f} = {theirs / mine:.2f}" for theirs, mine in pairs]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true", help="end with a Markdown table")
    given = parser.parse_args()
    rows = []
    for name, layer in LAYERS.items():
        if given.only not in name:
            continue
        sides = [functions(each, layer, given.batch) for each in (lax.conv_general_dilated, ours.conv_general_dilated)]
        for direction in sides[0]:
            runs, results = [], []
            for side in sides:
                compiled, arrays = side[direction]
                runs.append(lambda compiled=compiled, arrays=arrays: jax.block_until_ready(compiled(*arrays)))
                results.append(np.asarray(runs[-1](), np.float64))
            times = [[], []]
            for _ in range(given.rounds):
                for run, found in zip(runs, times, strict=True):
                    found.append(least(run))
            theirs, mine = (1e3 * statistics.median(found) for found in times)
            error = np.linalg.norm(results[0] - results[1]) / np.linalg.norm(results[0])
            rows.append({"layer": name, "direction": direction, "xla_ms": theirs, "ms": mine, "difference": error})
            print(f"{name:20} {direction:12} XLA {theirs:8.3f} ms  ours {mine:8.3f} ms  {theirs / mine:6.2f}  "
                  f"difference {error:.1e}", flush=True)  # fmt: skip
    ratios = [row["xla_ms"] / row["ms"] for row in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    left = ours.counters()["reasons"] or "none left to XLA"
    print(f"{len(rows)} rows, jax {jax.__version__} on {jax.devices()[0].platform}: XLA's time over ours, "
          f"geometric mean {mean:.2f}, least {min(ratios):.2f}; {left}")  # fmt: skip
    if given.table:
        print(table(rows))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
