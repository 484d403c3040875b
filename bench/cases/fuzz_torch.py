"""A differential fuzzer: random small PyTorch models, with habits, changed between calls, against eager PyTorch.

A seed makes a program: a model of 3 to 8 layers, up to three habits of its code (``fuzz_habits``: what it reads and
writes beside its weights), and 2 to 5 steps. A step makes a change (``fuzz_writes``), then calls the model in one of
``WAYS``. Each program runs through ``DOORS``: the model under ``enable()``, converted layer by layer, converted with
``fuse=True``, and compiled by the back end. A model of eager PyTorch's goes beside it: results, gradients, buffers,
what they share with the inputs, and what the code wrote must be the same. Without a compiler, so a seed takes a second.

    python -m bench fuzz_torch --first 1000 --count 1000   # Ctrl-C ends it
    python -m bench fuzz_torch --seed 17 --door fused      # one seed, step by step; --shrink makes it small

A child process runs ``BATCH`` seeds; one that dies or hangs is a finding of the seed that it was at. What PyTorch's
own compiler gets wrong too is no finding, nor what eager PyTorch answers differently each time, nor a difference that
the model shows at weights of a relative error 1e-5.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten_with_path
from torch.utils.checkpoint import checkpoint

import convdispatch.torch as ct
from bench import fuzz_habits as habits
from bench.fuzz_models import made
from bench.fuzz_writes import CHANGES
from bench.workers import Lost, farm
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.graph import inductor
from convdispatch.torch.graph.conversion import copied

LIMITS = {torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Relative differences (norm) that are allowed of narrow types; 3e-4 of others. Gradients may have ten times that."""
NOISE = 1e-5
"""Relative error of the weights by which a program shows how far it carries errors; ten times that is allowed."""
BATCH = 20
HANGS_S = 600.0
"""So long may one seed take behind one door, on a busy machine."""


# --- ways to call a model: each takes a world and returns a callable, which later steps use again -------------------


def _saved(world: World) -> Callable[..., Any]:
    place = io.BytesIO()
    torch.save(world.model, place)
    place.seek(0)
    return torch.load(place, weights_only=False)  # type: ignore[no-any-return]


def _methods(world: World) -> Callable[..., Any]:
    encode, decode = world.compile(world.model.encode), world.compile(world.model.decode)
    return lambda x, *more: decode(encode(x, *more), x, *more)


def _with_weights(world: World) -> Callable[..., Any]:
    """Weights that live for one call, the second ones in the memory of the first."""

    def run(x: torch.Tensor) -> Any:
        found = 0.0
        for factor in (1.1, 0.9):
            weights = {n: p * factor for n, p in world.model.named_parameters()}
            found = found + torch.func.functional_call(world.model, weights, (x,))
            del weights
        return found

    return run


def _ensemble(world: World) -> Callable[..., Any]:
    """vmap over weights too."""

    def run(x: torch.Tensor) -> Any:
        weights = {n: torch.stack([p, 0.5 * p]) for n, p in world.model.named_parameters()}
        return torch.func.vmap(lambda w: torch.func.functional_call(world.model, w, (x,)))(weights).sum(0)

    return run


def _thread(world: World) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def call() -> Any:
            with torch.set_grad_enabled(modes[0]), torch.inference_mode(modes[1]):
                return world.call(*given)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    return run


def _double_backward(call: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
    return second


USUAL: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "plain": lambda w: w.call,
    "twice": lambda w: lambda *given: (w.call(*given), w.call(*given)),
    "thread": _thread,
    "checkpoint": lambda w: lambda *given: checkpoint(w.call, *given, use_reentrant=False),
    "methods": _methods,
    "one method": lambda w: w.compile(w.model.encode),
    "copied": lambda w: copied(w.model),
    "compile eager": lambda w: torch.compile(w.model, backend="eager"),
}
"""Of models with habits."""
WAYS = USUAL | {
    "trace": lambda w: torch.jit.trace(w.model, w.arguments()[0], check_trace=False),
    "script": lambda w: torch.jit.script(w.model),
    "make_fx": lambda w: make_fx(w.model)(w.arguments()[0]),
    "export": lambda w: torch.export.export(w.model, w.arguments()[:1]).module(),
    "compile aot_eager": lambda w: torch.compile(w.model, backend="aot_eager"),
    "functional_call": lambda w: lambda x: torch.func.functional_call(w.model, dict(w.model.named_parameters()), (x,)),
    "with weights": _with_weights,
    "ensemble": _ensemble,
    "vmap": lambda w: lambda x: torch.func.vmap(w.model)(torch.stack([x, 2 * x]))[0],
    "jvp": lambda w: lambda x: torch.func.jvp(w.model, (x,), (x.flip(-1),))[1],
    "grad": lambda w: lambda x: torch.func.grad(lambda v: w.model(v).square().sum())(x),
    "double backward": lambda w: lambda x: _double_backward(w.call, x),
    "saved": _saved,
}
ONE_INPUT = set(WAYS) - set(USUAL)


# --- programs and worlds --------------------------------------------------------------------------------------------

FORMS = ("plain", "plain", "channels last", "strided", "inside", "transposed", "expanded", "one channel")
OTHERS = ("none", "none", "none", "same", "another", "view", "number", "integer", "scalar", "wide scalar", "bool")


@dataclasses.dataclass(frozen=True)
class Step:
    """A change and a call."""

    change: str = "nothing"
    state: str = ""
    value: float = 1.0
    way: str = "plain"
    mode: str = "no_grad"
    narrow: bool = False
    size: int = 0
    batch: int | None = None
    form: str = "plain"
    other: str = "none"


@dataclasses.dataclass(frozen=True)
class Program:
    """What a seed makes; without its steps, habits or layers it may fail the same way."""

    seed: int
    habits: tuple[str, ...]
    steps: tuple[Step, ...]
    training: bool
    engine: str
    dynamic: bool | None
    simple: bool = False

    @classmethod
    def of(cls, seed: int) -> Program:
        """A seed's program."""
        rng = random.Random(seed)
        returning = [n for n in habits.HABITS if n.startswith("returns")]
        others = [n for n in habits.HABITS if n not in returning]
        chosen = tuple(rng.sample(others, rng.choice([0, 1, 1, 2, 3])))
        if chosen and rng.random() < 0.25:  # the habit at place 0 comes last of all where there are one or two
            chosen = (*chosen[:2], rng.choice(returning))
        steps = tuple(_drawn_step(rng, chosen) for _ in range(rng.randint(2, 5)))
        engine = rng.choice(["form", "operators", "operators"])
        return cls(seed, chosen, steps, rng.random() < 0.3, engine, rng.choice([None, None, True, False]))


def _drawn_step(rng: random.Random, chosen: tuple[str, ...]) -> Step:
    reads = [name for name in chosen if name.startswith(("reads ", "refuses", "asserts"))]
    return Step(
        change=rng.choice(list(CHANGES)) if rng.random() < 0.7 else "nothing",
        state=rng.choice(reads) if reads and rng.random() < 0.6 else "",
        value=rng.choice([1.0, 2.0, 3.0]),
        way="plain" if rng.random() < 0.5 else rng.choice(list(USUAL if chosen else WAYS)),
        mode=rng.choice(["grad", "no_grad", "no_grad", "inference"]),
        narrow=rng.random() < 0.1,
        size=rng.choice([0, 0, 0, 1, 2, 4]),
        batch=rng.choice([None, None, None, None, 0, 1, 3]),
        form=rng.choice(FORMS),
        other=rng.choice(OTHERS),
    )


def _door(name: str, program: Program) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What makes the model that is called of a model, and what compiles one of its methods."""
    backend = {"backend": "convdispatch", "compiler": "aot_eager"}.get(name)
    if backend is not None:
        options = {"options": {"engine": program.engine}} if name == "backend" else {}

        def compile(called: Any) -> Any:
            return torch.compile(called, backend=backend, dynamic=program.dynamic, **options)

        return compile, compile
    Backend.__init__.__defaults__ = (None, {"engine": program.engine})  # of what convert makes
    convert = {"converted": ct.convert, "fused": lambda model: ct.convert(model, fuse=True)}.get(name, lambda m: m)
    return convert, lambda called: called


DOORS = ("enable", "converted", "fused", "backend")


class World:
    """A model behind a door, and what was made of it. Two worlds of a program differ by the door alone."""

    def __init__(self, program: Program, door: str) -> None:
        torch.manual_seed(program.seed)
        rng = random.Random(program.seed)
        self.door, self.program = door, program
        self.model, self.shape = made(rng, [habits.HABITS[n] for n in program.habits], program.simple)
        self.model.train(program.training and door != "fused")
        self._make, self.compile = _door(door, program)
        self.handles: list[Any] = []
        self.step = Step()
        if door == "noisy":
            with torch.no_grad():
                for p in self.model.parameters():
                    p.mul_(1 + NOISE * torch.randn_like(p))
        if door == "fused":
            self.model = self._make(self.model)
            self.model.train(program.training)
        self.replace(self.model)

    def replace(self, model: Any) -> None:
        """Another model; what was made of the one before goes."""
        self.model = model
        self.call = model if self.door == "fused" else self._make(model)
        self.made: dict[str, Callable[..., Any]] = {}

    def again(self) -> None:
        """Converted or compiled once more."""
        training = self.model.training
        if self.door == "fused":
            self.replace(self._make(self.model.eval()))
            self.model.train(training)
        elif self.door != "own":
            self.call = self._make(self.model)

    @property
    def value(self) -> float:
        """The number of the step's change."""
        return self.step.value

    def arguments(self) -> tuple[Any, ...]:
        """The inputs of the step; the same in both worlds."""
        dtype = next((p.dtype for p in self.model.parameters()), torch.float32)
        step, shape = self.step, self.shape
        batch = shape[0] if step.batch is None else step.batch
        x = _picture(step.form, (batch, shape[1], *(size + step.size for size in shape[2:])), dtype)
        other = {
            "none": lambda: None,
            "same": lambda: x,
            "view": lambda: x[:],
            "another": lambda: torch.randn_like(x),
            "number": lambda: 2.5,
            "integer": lambda: 3,
            "scalar": lambda: torch.tensor(1.5),
            "wide scalar": lambda: torch.tensor(1.5, dtype=torch.float64),
            "bool": lambda: True,
        }[step.other]()
        return (x,) if other is None or isinstance(self.model, torch.nn.Sequential) else (x, other)

    def run(self) -> dict[str, Any]:
        """The step's change and call: the results by name, and what is to be compared beside."""
        step = self.step
        if step.state:
            habits.set_state(self.model, step.state, step.value)
        with self._on():
            CHANGES[step.change](self)
            if step.way not in self.made or step.way in ("copied", "saved"):
                self.made[step.way] = WAYS[step.way](self)
            return self._called(self.made[step.way])

    def _on(self) -> Any:
        return ct.enable() if self.door == "enable" else contextlib.nullcontext()

    def _called(self, call: Callable[..., Any]) -> dict[str, Any]:
        step = self.step
        contexts = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
        x, *more = self.arguments()
        if step.mode == "grad":
            kept, x = x, x.detach().requires_grad_()
            more = [x if each is kept else each for each in more]
        given = x.detach()
        with contexts[step.mode](), torch.autocast("cpu", torch.bfloat16, enabled=step.narrow):
            y = call(x) if step.way in ONE_INPUT else call(x, *more)
        paths, structure = tree_flatten_with_path(y)
        found: dict[str, Any] = {"structure": str(structure)}
        for path, leaf in paths:
            name = f"result{torch.utils._pytree.keystr(path)}"
            found[name] = leaf
            if isinstance(leaf, torch.Tensor):
                shared = leaf.numel() and leaf.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
                found[f"{name}'s kind"] = (type(leaf).__name__, leaf.dtype, leaf.requires_grad, bool(shared), leaf is x)
        if step.mode == "grad":
            found |= self._gradients(x, [leaf for _, leaf in paths])
        found["the input"] = given
        found |= {f"buffer {n}": b.clone() for n, b in self.model.named_buffers()}
        return found | {f"parameter {n}": p.detach().clone() for n, p in self.model.named_parameters()}

    def _gradients(self, x: torch.Tensor, results: list[Any]) -> dict[str, Any]:
        loss = 0.0
        for y in results:
            if isinstance(y, torch.Tensor) and y.requires_grad and y is not x:
                loss = loss + (y.double().flatten() * torch.linspace(-1, 1, y.numel(), dtype=torch.float64)).sum()
        wanted = {"x": x} | {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if not isinstance(loss, torch.Tensor):
            return {}
        grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        return {f"gradient of {n}": g for n, g in zip(wanted, grads, strict=True) if g is not None}


def _picture(form: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    if form == "channels last" and x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if form == "strided":
        return torch.randn(2 * shape[0], *shape[1:], dtype=dtype)[::2]
    if form == "inside":
        return torch.randn(*shape[:-1], shape[-1] + 3, dtype=dtype)[..., 1:-2]
    if form == "expanded" and shape[0]:
        return x[:1].expand(shape)
    if form == "one channel":
        return x[:, :1].expand(shape)
    return x.transpose(1, -1).contiguous().transpose(1, -1) if form == "transposed" else x


# --- comparison -----------------------------------------------------------------------------------------------------


def difference(got: Any, wanted: Any, least: float = 1e-6) -> float:
    """Of tensors the difference (norm) relative to what is wanted, or to ``least`` where that is less; of others 0
    where they are equal, else infinite."""
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        same = got == wanted or (isinstance(got, float) and abs(got - wanted) <= 1e-3 * abs(wanted) + 1e-6)
        return 0.0 if type(got) is type(wanted) and same else float("inf")
    if got.shape != wanted.shape:
        return float("inf")
    got, wanted = got.detach().double(), wanted.detach().double()
    finite = torch.isfinite(wanted)
    if not torch.equal(torch.isfinite(got), finite):
        return float("inf")
    return (got - wanted)[finite].norm().item() / max(wanted[finite].norm().item(), least)


def _limit(name: str, value: Any, narrow: bool) -> float:
    dtype = torch.bfloat16 if narrow else getattr(value, "dtype", None)
    return LIMITS.get(dtype, 3e-4) * (10 if name.startswith(("gradient", "parameter")) else 1)


@dataclasses.dataclass
class Wrong:
    """What differs: at which step, of what name, and by how much."""

    step: int
    name: str
    error: float
    words: str = ""

    def __str__(self) -> str:
        return self.words or f"step {self.step}, {self.name}: differs by {self.error:.3g}"


def _raised(world: World, seed: int) -> tuple[dict[str, Any], BaseException | None]:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        return world.run(), None
    except Exception as error:
        return {}, error


def compare(program: Program, door: str, tell: bool = False) -> list[Wrong]:
    """All that is wrong with a program behind a door, up to the first step with something wrong."""
    habits.reset()
    own = World(program, "own")
    if door == "fused":
        own.model.requires_grad_(False)
    ours = World(program, door)
    for number, step in enumerate(program.steps):
        own.step = ours.step = step
        before = habits.shared()
        wanted, failure = _raised(own, program.seed + number)
        after = habits.shared()
        habits.SHARED.update(before)
        got, error = _raised(ours, program.seed + number)
        found = _wrongs(number, step, (wanted, failure), (got, error))
        if failure is None and not found:
            found += [
                Wrong(number, "caches", 1.0, f"a fake tensor: {each}") for each in habits.fake_tensors_in_caches()
            ]
            written = habits.shared()
            if after["count"] != written["count"] or len(after["seen"]) != len(written["seen"]):
                found.append(Wrong(number, "shared", 1.0, f"step {number} wrote {written}, not {after}"))
        if tell:
            said = "; ".join(map(str, found)) or (f"PyTorch: {failure}" if failure else "right")
            print(f"{door}, {step} -> {said}", flush=True)
        if found or (failure is not None and not isinstance(failure, habits.Refused)):
            return found
    return []


def _wrongs(number: int, step: Step, wanted: Any, got: Any) -> list[Wrong]:
    (results, failure), (ours, error) = wanted, got
    if failure is not None:
        refused = isinstance(failure, habits.Refused) or "nonzero value" in str(failure)
        if refused and type(error) is not type(failure):
            return [Wrong(number, "raises", 1.0, f"step {number} should raise {failure!r}, not {error!r}")]
        return []  # what PyTorch does not do
    if "Guard failed on the same frame" in str(error):
        return []  # Dynamo's own: a global array of NumPy's, first seen in another mode of gradients
    if error is not None:
        return [Wrong(number, "raises", 1.0, "".join(traceback.format_exception(error, limit=-8)))]
    if results.keys() != ours.keys():
        return [Wrong(number, "names", 1.0, f"step {number}: other names: {sorted(results.keys() ^ ours.keys())}")]
    found = []
    gradients = [y.double().norm().item() for name, y in results.items() if name.startswith("gradient")]
    # A gradient that vanishes, as of a bias before a batch norm, is the rounding errors of what cancels.
    least = max([1e-6, *(1e-2 * each for each in gradients)])
    for name, value in results.items():
        wrong = difference(ours[name], value, least if name.startswith("gradient") else 1e-6)
        if not wrong <= _limit(name, value, step.narrow):
            words = "" if isinstance(value, torch.Tensor) else f"step {number}, {name}: {ours[name]}, not {value}"
            found.append(Wrong(number, name, wrong, words))
    return found


def run(program: Program, door: str, tell: bool = False) -> Wrong | None:
    """What is wrong with a program behind a door and is ours."""
    found = _isolated(program, door, tell)
    if found:  # eager PyTorch beside itself: some of oneDNN's gradients in bfloat16 are memory that nobody wrote
        unsteady = {(each.step, each.name) for _ in range(4) for each in _isolated(program, "own")}
        found = [each for each in found if (each.step, each.name) not in unsteady]
    if found and door in ("fused", "backend"):
        same = dataclasses.replace(program, dynamic=None) if door == "fused" else program  # as convert() compiles
        theirs = {(each.step, each.name) for each in _isolated(same, "compiler")}
        found = [each for each in found if (each.step, each.name) not in theirs]
    if found and any(each.error != 1.0 for each in found):
        noise = {(each.step, each.name): each.error for each in _isolated(program, "noisy")}
        found = [each for each in found if each.error > 10 * noise.get((each.step, each.name), 0.0)]
    return found[0] if found else None


def _isolated(program: Program, door: str, tell: bool = False) -> list[Wrong]:
    try:
        return compare(program, door, tell)
    finally:
        ct.disable()
        torch.compiler.reset()


def shrunk(program: Program, door: str) -> Program:
    """A program with fewer steps, habits and layers, and plainer steps, that still goes wrong."""

    def smaller(program: Program) -> Iterator[Program]:
        yield dataclasses.replace(program, simple=True)
        for place in range(len(program.steps)):
            yield dataclasses.replace(program, steps=program.steps[:place] + program.steps[place + 1 :])
        for place in range(len(program.habits)):
            yield dataclasses.replace(program, habits=program.habits[:place] + program.habits[place + 1 :])
        yield dataclasses.replace(program, training=False, engine="operators", dynamic=None)
        for place, step in enumerate(program.steps):
            for name, value in vars(Step()).items():
                plain = dataclasses.replace(step, **{name: value})
                yield dataclasses.replace(program, steps=(*program.steps[:place], plain, *program.steps[place + 1 :]))

    while True:
        for candidate in smaller(program):
            if candidate != program and candidate.steps and run(candidate, door) is not None:
                program = candidate
                break
        else:
            return program


def described(program: Program) -> str:
    """A program in few lines."""
    plain, steps = vars(Step()), []
    for step in program.steps:
        told = [f"{name} {value}" for name, value in vars(step).items() if value != plain[name]]
        steps.append("  " + (", ".join(told) or "plain"))
    head = f"habits: {', '.join(program.habits) or 'none'}; engine {program.engine}, dynamic {program.dynamic}"
    return "\n".join([head + ", training" * program.training + ", one layer" * program.simple, *steps])


# --- the process ----------------------------------------------------------------------------------------------------


def prepare() -> None:
    """A process that runs seeds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    inductor.available = lambda device: False  # type: ignore[assignment]


def check(task: tuple[int, str]) -> tuple[tuple[int, str], str]:
    """A seed and a door, and what is wrong there."""
    program = Program.of(task[0])
    wrong = run(program, task[1])
    return task, "" if wrong is None else f"{described(program)}\n{wrong}"


def run_batches(given: argparse.Namespace) -> int:
    """Batches of seeds, each in a child; how many findings there were. A child that dies or hangs is a finding."""
    found, begun, last = 0, time.monotonic(), given.first + given.count
    for first in range(given.first, last, BATCH):
        seeds = range(first, min(last, first + BATCH))
        tasks = [(seed, door) for seed in seeds for door in given.door]
        until = time.monotonic() + HANGS_S * len(tasks)
        for told in farm(1, prepare, (), check, tasks, until=until, task_s=HANGS_S):
            (seed, door), wrong = (told.task, told.why) if isinstance(told, Lost) else told
            if wrong:
                found += 1
                print(f"--- python -m bench fuzz_torch --seed {seed} --door {door}\n{wrong}", flush=True)
        rate = (time.monotonic() - begun) / (seeds.stop - given.first)
        print(f"seed {seeds.stop} of {last}: {found} found, {rate:.2f} s a seed", flush=True)
    return found


def main() -> None:
    """As the words above have it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for a smaller program that fails")
    parser.add_argument("--door", action="append", choices=DOORS, help="default: all")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    given.door = given.door or list(DOORS)
    if given.seed is None:
        try:
            sys.exit(run_batches(given) > 0)
        except KeyboardInterrupt:
            sys.exit(130)
    prepare()
    wrong = None
    for door in given.door:
        program = Program.of(given.seed)
        print(described(program))
        wrong = run(program, door, tell=True)
        if wrong is not None and given.shrink:
            program = shrunk(program, door)
            print(f"smaller:\n{described(program)}\n{run(program, door, tell=True)}")
        print(f"{door}: {wrong or 'right'}")
    sys.exit(wrong is not None)


if __name__ == "__main__":
    main()
