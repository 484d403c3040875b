"""One process a GPU, as torchrun starts it: ResNet-50's training step by DistributedDataParallel, plain and ours.

    python -m torch.distributed.run --standalone --nproc_per_node=2 -m bench.cases.torch_ranks --out DIR
    python -m torch.distributed.run --standalone --nproc_per_node=2 -m bench.cases.torch_ranks --phases first,ddp
    python -m torch.distributed.run --standalone --nproc_per_node=2 -m bench.cases.torch_ranks --tiny  # CPUs, gloo

Phases: ``plain`` is PyTorch under DDP; ``prepare`` makes our programs ready; ``first`` is our first step under DDP,
``ddp`` its steady steps, and whether the ranks' weights are equal after them; ``alone`` is our step without DDP, each
rank for itself, ``alone-plain`` PyTorch's. Each rank says each phase at once, on its output and in ``DIR/rankN.jsonl``;
its stacks go to ``DIR/rankN.txt`` every five seconds and when it ends late, so that a rank that waits tells where.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

BEGIN = time.perf_counter()

import click  # noqa: E402 (the clock starts before PyTorch is imported)
import torch  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from bench import torch_zoo  # noqa: E402

PHASES = ("plain", "prepare", "first", "ddp", "alone", "alone-plain")

ROUNDS = 5


def timed(run: Callable[[], Any], cuda: bool, seconds: float) -> float:
    """Milliseconds a call, over about ``seconds``; on CUDA by events around the calls."""
    if not cuda:
        run()
        begin, count = time.perf_counter(), 0
        while not count or time.perf_counter() - begin < seconds:
            run()
            count += 1
        return 1e3 * (time.perf_counter() - begin) / count
    run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    count = max(3, min(200, int(seconds / max(time.perf_counter() - begin, 1e-5))))
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / count


def left() -> dict[str, Any]:
    """What became of the calls."""
    import convdispatch.torch as ct

    counted = ct.counters()
    return {"routed": counted["ours"], "left": counted["left"], "reasons": counted["reasons"]}


def net(name: str, device: str, training: bool, last: bool) -> Any:
    """A net of the zoo with seeded weights."""
    torch.manual_seed(0)
    made = getattr(torch_zoo, name)().to(device).train(training)
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made.to(memory_format=torch.channels_last) if last else made


def images(count: int, device: str, last: bool) -> Any:
    """Noise of ImageNet's size."""
    x = torch.randn(count, 3, 224, 224, device=device)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def switches(tf32: bool) -> None:
    """PyTorch's own switches, as its users set them."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False


class Rank:
    """This process: its model's sides, and what it says."""

    def __init__(self, out: Path | None, tiny: bool) -> None:
        self.number, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = torch.cuda.is_available() and not tiny
        self.file = None if out is None else (out / f"rank{self.number}.jsonl").open("a")
        self.place = f"cuda:{os.environ['LOCAL_RANK']}" if self.cuda else "cpu"
        if self.cuda:
            torch.cuda.set_device(self.place)
        switches(False)
        torch.distributed.init_process_group("nccl" if self.cuda else "gloo", timeout=timedelta(seconds=60))
        self.batch = 2 if tiny else 64
        self.x = torch.randn(2, 3, 32, 32) if tiny else images(self.batch, self.place, False)
        self.labels = torch.randint(0, 1000, (self.batch,), device=self.place)

    def say(self, **values: Any) -> None:
        """At once."""
        line = json.dumps({"rank": self.number, **values})
        print(line + "\n", end="", flush=True)  # one write: ranks share the output
        if self.file:
            print(line, file=self.file, flush=True)

    def stepper(self, many: bool) -> tuple[Any, Callable[[], None]]:
        """(model, a training step); under DDP for ``many``."""
        model = net("resnet50", self.place, True, False)
        if many:
            model = DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])] if self.cuda else None)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(self.x), self.labels).backward()
            optimizer.step()

        return model, step

    def wait(self) -> None:
        """For the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def meet(self) -> None:
        """For the other ranks, so that phases begin together."""
        self.wait()
        torch.distributed.barrier()
        self.wait()

    def steady(self, step: Callable[[], None], seconds: float, ranks: int) -> dict[str, Any]:
        """Milliseconds a step, by the same number of steps on each rank, and images a second of all of them."""
        times = []
        for _ in range(3):
            step()
        for _ in range(ROUNDS):
            self.meet()
            if ranks == 1:
                times.append(timed(step, self.cuda, seconds / ROUNDS))
                continue
            count = 4
            begin = time.perf_counter()
            for _ in range(count):
                step()
            self.wait()
            times.append(1e3 * (time.perf_counter() - begin) / count)
        middle = statistics.median(times)
        return {
            "ms_a_step": round(middle, 2),
            "least": round(min(times), 2),
            "most": round(max(times), 2),
            "images_a_second": round(1e3 * ranks * self.batch / middle),
        }


@contextlib.contextmanager
def taken(rank: Rank, phase: str) -> Iterator[dict[str, Any]]:
    """Say how long a phase took, with what the block adds, and what was spent on programs."""
    from convdispatch.device.startup_profile import PHASES as SPENT
    from convdispatch.device.startup_profile import noting

    rank.say(phase=phase, begins=round(time.perf_counter() - BEGIN, 1))
    more: dict[str, Any] = {}
    begin = time.perf_counter()
    with noting() as notes:
        yield more
        rank.wait()
    spent = {name: round(notes.of(name).seconds, 2) for name in SPENT if notes.of(name).seconds > 0.01}
    rank.say(phase=phase, seconds=round(time.perf_counter() - begin, 2), spent=spent, **more)


def run(rank: Rank, phases: list[str]) -> None:
    """The phases, in their order."""
    import convdispatch.torch as ct

    if "plain" in phases:
        with taken(rank, "plain") as more:
            _, step = rank.stepper(True)
            more |= rank.steady(step, 2.0, rank.count)
            del step
    rank.meet()
    with ct.enable():
        if "prepare" in phases:
            with taken(rank, "prepare") as more:
                model, step = rank.stepper(False)
                more |= {"ready": ct.prepare(model, rank.x)}
    rank.meet()
    with ct.enable():
        if "first" in phases or "ddp" in phases:
            with taken(rank, "first"):
                model, step = rank.stepper(True)
                step()
        if "ddp" in phases:
            with taken(rank, "ddp") as more:
                more |= rank.steady(step, 2.0, rank.count) | left()
            rank.say(phase="ddp", ranks_equal=equal(model))
        rank.meet()
        if "alone" in phases:
            with taken(rank, "alone, first step"):
                model, step = rank.stepper(False)
                step()
            with taken(rank, "alone") as more:
                more |= rank.steady(step, 2.0, 1) | left()
    if "alone-plain" in phases:
        with taken(rank, "alone-plain") as more:
            model, step = rank.stepper(False)
            more |= rank.steady(step, 1.0, 1)
    rank.meet()


def equal(model: Any) -> bool:
    """Whether all ranks hold the same weights, bit by bit."""
    mine = torch.cat([each.detach().flatten() for each in model.parameters()]).view(torch.int32)
    theirs = mine.clone()
    torch.distributed.broadcast(theirs, 0)
    same = torch.equal(mine, theirs)
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, same)
    return all(found)


def watch(stacks: Any) -> None:
    """Write all threads' stacks every five seconds. (faulthandler's own repeated ones crash threads that run.)"""
    names = {each.ident: each.name for each in threading.enumerate()}
    while True:
        time.sleep(5)
        print(f"--- {time.perf_counter() - BEGIN:.0f} s", file=stacks)
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident():
                innermost = traceback.format_stack(frame)[-12:]
                print(f"thread {names.get(ident, ident)}\n{''.join(innermost)}", file=stacks, flush=True)


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), help="A folder for what each rank says and for its stacks.")
@click.option("--phases", default=",".join(PHASES), show_default=True)
@click.option("--seconds", default=80.0, show_default=True, help="A rank that has not ended by then ends.")
@click.option("--tiny", is_flag=True, help="Small images on CPUs, by gloo: a rehearsal.")
def main(out: Path | None, phases: str, seconds: float, tiny: bool) -> None:
    """Run phases."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        stacks = (out / f"rank{os.environ['RANK']}.txt").open("a")
        threading.Thread(target=watch, args=(stacks,), daemon=True).start()
        faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
    else:
        faulthandler.dump_traceback_later(seconds, exit=True)
    rank = Rank(out, tiny)
    rank.say(phase="start", seconds=round(time.perf_counter() - BEGIN, 1))
    run(rank, phases.split(","))
    rank.say(phase="end", seconds=round(time.perf_counter() - BEGIN, 1))
    faulthandler.cancel_dump_traceback_later()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
