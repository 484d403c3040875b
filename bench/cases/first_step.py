"""The first step of a PyTorch model under enable(): how long until it answers, and until it runs at full speed.

    python -m bench first_step [--device cuda|cpu] [--rows resnet18-train-float32,...] [--seconds 30] [--json FILE]

Each figure is a process of its own. ``torch`` is PyTorch alone. ``cold`` has empty caches, ours and the driver's;
``warm`` is the process after it on the same machine. A row tells the first
step's seconds above PyTorch's own first one, the wall seconds after which steps keep 95 % of the final speed, how many
programs were compiled, and the final step beside PyTorch's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench import again
from bench.workers import last_object

ROWS = (
    "resnet18-train-float32",
    "resnet50-train-float32",
    "resnet50-train-autocast",
    "resnext50_32x4d-train-autocast",
    "resnet50-infer-float16",
    "efficientnet_b0-infer-float16",
)
BATCH, SIZE, CLASSES = 32, 224, 1000
STEADY = 0.95
SETTLED_S = 3.0
"""A process runs on so long once everything is planned."""


def build():
    """(model, inputs) of the row in FIRST_STEP_ROW."""
    import torch

    name, what, form = os.environ["FIRST_STEP_ROW"].split("-")
    device = os.environ.get("FIRST_STEP_DEVICE", "cuda")
    batch, size = (BATCH, SIZE) if device == "cuda" else (2, 64)
    torch.manual_seed(0)
    import torchvision.models as nets

    model = getattr(nets, name)().to(device)
    x = torch.randn(batch, 3, size, size, device=device)
    model.train(what == "train")
    if form == "float16":
        model, x = model.half(), x.half()
    if form != "float32":
        model, x = (each.to(memory_format=torch.channels_last) for each in (model, x))
    return model, x


def fused():
    """As ``build``, the model fused."""
    import convdispatch.torch as ct

    model, x = build()
    return ct.convert(model, fuse=True), x


def child(mode: str, seconds: float) -> None:
    import torch

    torch.backends.cudnn.benchmark = False
    _, what, form = os.environ["FIRST_STEP_ROW"].split("-")
    model, x = build()
    wait = torch.cuda.synchronize if x.is_cuda else (lambda: None)
    casting = torch.autocast(x.device.type, torch.bfloat16) if form == "autocast" else contextlib.nullcontext()
    target = torch.randint(0, CLASSES, (len(x),), device=x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4) if what == "train" else None
    wait()
    begin, noting, ready = time.perf_counter(), contextlib.nullcontext(), 0.0
    if mode != "torch":
        import convdispatch.torch as ct
        from convdispatch.device import startup_profile

        if what == "infer":
            model = ct.convert(model, fuse=True)
        ct.enable()
        noting, ready = startup_profile.noting(), time.perf_counter() - begin

    def step() -> None:
        if optimizer is None:
            with torch.inference_mode():
                model(x)
        else:
            optimizer.zero_grad(set_to_none=True)
            with casting:
                loss = torch.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
        wait()

    ends, settled, final = [], None, SETTLED_S if mode == "torch" else seconds
    with noting as notes:
        step()
    ends.append(time.perf_counter() - begin)
    while True:
        step()
        ends.append(time.perf_counter() - begin)
        if mode != "torch" and settled is None:
            from convdispatch.calls.framework import tiers

            if not tiers.pending() and len(ends) > 2:
                settled = ends[-1]
                final = min(final, settled + SETTLED_S)
        if ends[-1] > final:
            break
    times = [b - a for a, b in zip([0.0, *ends], ends)]
    last = statistics.median(times[-min(20, len(times) // 2 + 1) :])
    slow = [end for end, took in zip(ends, times) if took > last / STEADY * 1.02]
    # Single slow steps come from other processes: full speed is where four of five steps keep it from then on.
    full = next((end for at, end in enumerate(ends) if _keeps(times[at + 1 :], last)), ends[-1])
    found = {"first": ends[0], "second": times[1], "last": last, "full": full, "settled": settled, "slow": len(slow)}
    if mode != "torch":
        spent = {name: notes.of(name).seconds for name in startup_profile.PHASES if notes.of(name).count}
        found["phases"] = {name: round(s, 3) for name, s in {"imports": ready, **spent}.items()}
        counted = ct.counters()
        found |= {name: counted[name] for name in ("ours", "left", "compiling")} | {"reasons": counted["reasons"]}
        from convdispatch.calls.planner_pool import pool

        found["planned aside"] = sum(each.finished for each in pool._pools.values())
    if x.is_cuda:
        found["peak MiB"] = torch.cuda.max_memory_allocated() >> 20
    from convdispatch.device.cache.store import PROGRAMS

    found["programs"] = sum(program.label != "machine code" for program in PROGRAMS.entries())
    print(json.dumps(found))


def _keeps(times: list[float], last: float) -> bool:
    return bool(times) and sum(took <= last / STEADY for took in times[:50]) >= 0.8 * len(times[:50])


def run(mode: str, row: str, arguments: argparse.Namespace, caches: Path) -> dict:
    environment = variables(row, arguments, caches) | {"XDG_CACHE_HOME": str(caches / "cache")}
    command = [*again("first_step"), "--child", mode, "--seconds", str(arguments.seconds)]
    return last_object(command, 60 + 3 * arguments.seconds, environment)


def variables(row: str, arguments: argparse.Namespace, caches: Path) -> dict[str, str]:
    """A child's: the row, and where caches are."""
    said = {"FIRST_STEP_ROW": row, "FIRST_STEP_DEVICE": arguments.device, "CUDA_CACHE_PATH": str(caches / "cuda")}
    return os.environ | said | {"CONVDISPATCH_KERNEL_CACHE": str(caches / "kernels")}


def described(row: str, mode: str, got: dict, plain: dict) -> str:
    """What a child found, beside PyTorch's."""
    return (
        f"{row:32} {mode:5} first {got['first']:6.2f} s, {got['first'] - plain['first']:+.2f} above PyTorch's; 95 % "
        f"after {got['full']:5.1f} s; planned {got['settled'] or -1:5.1f} s; step {1e3 * got['last']:7.2f} ms, "
        f"PyTorch {1e3 * plain['last']:7.2f}; {got['programs']} programs, {got['planned aside']} aside; "
        f"ours {got['ours']} compiling {got['compiling']} left {got['left']}; "
        f"peak {got.get('peak MiB', 0)} MiB for {plain.get('peak MiB', 0)}; {got['phases']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--modes", default="cold,warm", help="``torch`` runs in any case")
    parser.add_argument("--seconds", type=float, default=30.0, help="the longest that a process runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.seconds)
        return
    found = {}
    for row in arguments.rows.split(","):
        with tempfile.TemporaryDirectory() as folder:
            caches = Path(folder) / "one"
            plain = run("torch", row, arguments, Path(folder) / "none")
            found[row] = {"torch": plain}
            for mode in arguments.modes.split(","):
                if mode == "torch":
                    continue
                try:
                    got = run(mode, row, arguments, caches)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    print(f"{row} {mode}: {str(error)[-500:]}", flush=True)
                    continue
                found[row][mode] = got
                print(described(row, mode, got, plain), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
