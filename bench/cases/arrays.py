"""What a call costs by where its arrays lie: NumPy's, OpenCL's and PyTorch's, beside ``out=`` on device arrays.

    python -m bench arrays [--device NAME] [--rounds 15]

Five layers; each way is called in turns, the medians' ratios to ``out=`` on device arrays are printed. One run, so that
a busy machine's moods meet all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import pyopencl.array as cla
from rich.console import Console
from rich.table import Table

import convdispatch as cd
from bench import results
from bench.timer import host_seconds, in_turns
from convdispatch.device import runtime

LAYERS = {
    "1x1 256->64, 56x56, batch 8": ((8, 256, 56, 56), (64, 256, 1, 1), {}),
    "depthwise 144, 56x56, batch 8": ((8, 144, 56, 56), (144, 1, 3, 3), {"padding": 1, "groups": 144}),
    "64->64 3x3, 224x224, batch 2": ((2, 64, 224, 224), (64, 64, 3, 3), {"padding": 1}),
    "64->64 3x3, 56x56, batch 1": ((1, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "32->32 3x3, 14x14, batch 1": ((1, 32, 14, 14), (32, 32, 3, 3), {"padding": 1}),
}
WAYS = ("NumPy", "NumPy out=", "new Array", "new Tensor", "torch")
SAMPLE_S = 0.01


def ways(queue: Any, x: np.ndarray, w: np.ndarray, options: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Every way to call one layer."""
    xa, wa = cla.to_device(queue, x), cla.to_device(queue, w)
    ya = cd.conv(xa, wa, **options)
    xt, wt = cd.Tensor.from_numpy(x, queue), cd.Tensor.from_numpy(w, queue)
    y = np.empty(ya.shape, ya.dtype)
    found = {
        "out=": lambda: cd.conv(xa, wa, out=ya, **options),
        "NumPy": lambda: cd.conv(x, w, queue=queue, **options),
        "NumPy out=": lambda: cd.conv(x, w, out=y, queue=queue, **options),
        "new Array": lambda: cd.conv(xa, wa, **options),
        "new Tensor": lambda: cd.conv(xt, wt, **options),
    }
    try:
        import torch
    except ImportError:
        return found
    xp, wp = torch.from_numpy(x), torch.from_numpy(w)
    return found | {"torch": lambda: cd.conv(xp, wp, **options)}


def finished(call: Callable[[], Any], queue: Any) -> None:
    """A call until its result is there, which goes as soon as the next is."""
    call()
    queue.finish()


@click.command()
@results.recording
@click.option("--device", help="A device's name, vendor, type, or platform:device.")
@click.option("--rounds", default=15, show_default=True)
def main(device: str | None, rounds: int) -> None:
    """Measure."""
    queue = runtime.queue(runtime.find_device(device))
    table = Table("layer", "out= us", *WAYS, title=f"Ratios to out= on {runtime.device_info(queue.device)}")
    random = np.random.default_rng(0)
    for name, (x_shape, w_shape, options) in LAYERS.items():
        x, w = (random.standard_normal(shape, dtype=np.float32) for shape in (x_shape, w_shape))
        calls = {way: functools.partial(finished, call, queue) for way, call in ways(queue, x, w, options).items()}
        for call in calls.values():
            host_seconds(call, 3)
        repeat = max(1, round(SAMPLE_S / host_seconds(calls["out="], 3)))
        medians = in_turns({way: functools.partial(host_seconds, call, repeat) for way, call in calls.items()}, rounds)
        base = medians["out="]
        cells = [
            f"{medians[way] / base:.2f} ({(medians[way] - base) * 1e6:+.0f} us)" if way in medians else ""
            for way in WAYS
        ]
        table.add_row(name, f"{base * 1e6:.0f}", *cells)
    Console(width=160).print(table)
    results.keep_table(table)


if __name__ == "__main__":
    main()
