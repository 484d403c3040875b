"""How much longer a training step takes while ``cudnn.benchmark`` measures in the background, under ``enable()``.

    python bench/background_step.py --device cpu --size 64 --batch 4 --seconds 100
    python bench/background_step.py --device cuda --size 224 --batch 32 --half --seconds 80

ResNet-18's step, one after another and with a pause before each (as a loader's would be): in a short one the background
begins its process, in one of three seconds it searches, and each step ends that. The sides take turns of a few steps:
with the flag, problems asked for anew in each turn, and with the background held back as a capture does; what the
background learns of pauses is forgotten before each step. Only steps count during which the background had work. A
ratio is of medians, and of 95th percentiles.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["CONVDISPATCH_DB"] = tempfile.mkdtemp()  # nothing was measured

import click
import torch
import torch_zoo
from training_step import step_of

import convdispatch.torch as ct
from convdispatch.calls.framework import autotune
from convdispatch.device import runtime

STEPS = 6
SETTLED_S = 0.3
"""Processor time of the children that stands still for so long: they wait."""


def _spent() -> list[str]:
    """Processor time of this process's children."""
    tasks = Path("/proc/self/task").glob("*/children")
    found = []
    for child in " ".join(path.read_text() for path in tasks).split():
        try:
            found.append(" ".join(Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        except OSError:
            continue
    return found


def settle() -> None:
    """Wait until no child works."""
    last, since = _spent(), time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        time.sleep(0.02)
        now = _spent()
        if now != last:
            last, since = now, time.monotonic()


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True)
@click.option("--size", default=64, show_default=True)
@click.option("--batch", default=4, show_default=True)
@click.option("--half", is_flag=True, help="Autocast to float16, channels last.")
@click.option("--pause", "pauses", multiple=True, type=float, default=[0.0, 0.15, 3.0], show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="In all.")
def main(device: str, size: int, batch: int, half: bool, pauses: tuple[float, ...], seconds: float) -> None:
    if device == "cpu":
        torch.set_num_threads(runtime.device_info(runtime.default_device()).compute_units)
    torch.manual_seed(0)
    net, x = torch_zoo.resnet18().to(device), torch.randn(batch, 3, size, size, device=device)
    if half:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    plain = step_of(net, x, torch.randint(0, 1000, (batch,), device=device))

    def step() -> float:
        begin = time.perf_counter()
        with torch.autocast(device, torch.float16, enabled=half):
            plain()  # answers its loss, so it waits for the device
        return 1e3 * (time.perf_counter() - begin)

    with ct.enable():
        for _ in range(5):
            step()
        for pause in pauses:
            times: dict[bool, list[float]] = {False: [], True: []}
            end = time.monotonic() + seconds / len(pauses)
            while time.monotonic() < end:
                for flag in (False, True):
                    torch.backends.cudnn.benchmark = flag
                    if flag:
                        autotune._considered.clear()
                        step()  # asks
                    else:
                        autotune.capture_begins()
                    settle() if not flag else time.sleep(2 * autotune.QUIET_S)
                    for _ in range(STEPS):
                        autotune._pause = autotune.QUIET_S  # as the first pause finds it
                        time.sleep(pause)
                        busy = bool(autotune._busy)
                        took = step()
                        if busy or not flag:
                            times[flag].append(took)
                    if not flag:
                        autotune.capture_ends()
            (off, off_high), (on, on_high) = ((statistics.median(ms), _high(ms)) for ms in times.values())
            what = f"{device} batch {batch}, {size} x {size}{', float16' if half else ''}, {pause:g} s before each step"
            print(
                f"{what}: off {off:.2f} ms (95 % {off_high:.2f}), on {on:.2f} ({on_high:.2f}); "
                f"{on / off:.3f} ({on_high / off_high:.3f}); {len(times[True])} and {len(times[False])} steps",
                flush=True,
            )
    os._exit(0)  # whatever the background is at


def _high(ms: list[float]) -> float:
    return sorted(ms)[math.ceil(0.95 * len(ms)) - 1]


if __name__ == "__main__":
    main()
