"""A differential fuzzer: small PyTorch models under random transforms and writes, against eager PyTorch in float64.

Each seed makes a model of 3 to 8 layers and some steps. A step may write weights (in place, through ``.data``, by an
optimizer or a state), then calls the model in one of ``WAYS`` (under ``enable()``, converted, fused, traced, compiled,
transformed by torch.func, ...), plain or under autocast, with gradients or without. Results, gradients and running
statistics are compared with those of a twin in float64 that has the same weights and nothing of this package.

    python -m bench fuzz_torch --seconds 600   # goes on where the last run stopped; --seed 17 is one seed, step by step

A process that dies costs the seed it was at. Failures print the line that runs them again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import random
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import BaseTorchFunctionMode

import convdispatch.torch as ct
from bench import again
from bench.fuzz_models import Model, made
from bench.fuzz_writes import REMAKES, WRITES
from convdispatch.torch import functional

LIMIT, GRADIENTS, NARROW = 3e-4, 3e-3, 6e-2
"""Relative errors, in norm: of results, of gradients, of what autocast computes in bfloat16. What is stale, frozen or
dropped is off by more; what is not is allowed ten times eager PyTorch's own error too."""
WRONG = 0.3  # an error of eager PyTorch's own beyond which it says nothing of ours
STATE = Path(__file__).parent / ".fuzz_torch"
"""The seed that a run is at; one with ``--first N`` has ``.fuzz_torch-N``, so that several go side by side."""


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative, in norm; infinite for another shape."""
    if got.shape != wanted.shape:
        return float("inf")
    got, wanted = got.detach().double(), wanted.detach().double()
    if not torch.isfinite(wanted).all():
        return 0.0 if torch.equal(torch.isfinite(got), torch.isfinite(wanted)) else float("inf")
    norm = wanted.norm().item()
    found = (got - wanted).norm().item()
    # A gradient that vanishes is the rounding errors of what cancels.
    return found if found != found else found / norm if norm > 1e-12 else float(found > 1e-4)


# --- ways to call a model: each takes the program and answers a callable, which later steps use again --------------


def _saved(program: Program) -> Callable[..., Any]:
    place = io.BytesIO()
    torch.save(program.model, place)
    place.seek(0)
    return torch.load(place, weights_only=False)  # type: ignore[no-any-return]


def _checkpointed(program: Program) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(program.model, x, use_reentrant=False)


def _functional(program: Program) -> Callable[..., Any]:
    model = program.model
    return lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,))


def _others(program: Program) -> Callable[..., Any]:
    """Weights that live for one call, the second ones in the memory of the first."""

    def run(x: torch.Tensor) -> torch.Tensor:
        found = 0.0
        for factor in (1.1, 0.9):
            weights = {n: p * factor for n, p in program.model.named_parameters()}
            found = found + torch.func.functional_call(program.model, weights, (x,))
            del weights
        return found

    return run


def _ensemble(program: Program) -> Callable[..., Any]:
    """vmap over weights too."""

    def run(x: torch.Tensor) -> torch.Tensor:
        if len(dict(program.model.named_modules())) < len(dict(program.model.named_modules(remove_duplicate=False))):
            raise RuntimeError("PyTorch leaves its batched tensors in a layer that is there twice")
        weights = {n: torch.stack([p, 0.5 * p]) for n, p in program.model.named_parameters()}
        return torch.func.vmap(lambda w: torch.func.functional_call(program.model, w, (x,)))(weights).sum(0)

    return run


def _thread(program: Program) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def call() -> torch.Tensor:
            with torch.set_grad_enabled(modes[0]), torch.inference_mode(modes[1]):
                return program.model(x)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    return run


WAYS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "plain": lambda p: p.model,
    "twice": lambda p: lambda x: 0.5 * (p.model(x) + p.model(x)),
    "trace": lambda p: torch.jit.trace(p.model, p.data(), check_trace=False),
    "script": lambda p: torch.jit.script(p.model),
    "make_fx": lambda p: make_fx(p.model)(p.data()),
    "export": lambda p: torch.export.export(p.model, (p.data(),)).module(),
    "compile eager": lambda p: torch.compile(p.model, backend="eager"),
    "compile aot_eager": lambda p: torch.compile(p.model, backend="aot_eager"),
    "compile convdispatch": lambda p: torch.compile(p.model, backend="convdispatch"),
    "checkpoint": _checkpointed,
    "functional_call": _functional,
    "functional_call, others": _others,
    "ensemble": _ensemble,
    "thread": _thread,
    "vmap": lambda p: lambda x: torch.func.vmap(p.model)(torch.stack([x, 2 * x]))[0],
    "jvp": lambda p: lambda x: torch.func.jvp(p.model, (x,), (x.flip(-1),))[1],
    "grad": lambda p: lambda x: torch.func.grad(lambda v: p.model(v).square().sum())(x),
    "double backward": lambda p: lambda x: _double_backward(p.model, x),
    "saved": _saved,
    "copied": lambda p: copy.deepcopy(p.model),
}
RECORDED = {"trace", "make_fx", "export", "script"}
OWN = {"saved", "copied"}
"""These have weights of their own: made anew at each step."""
UNLIKE_INFERENCE = {
    "vmap",
    "ensemble",
    "compile eager",
    "compile aot_eager",
    "compile convdispatch",
    "functional_call",
    "functional_call, others",
}
NO_GRADIENTS = {"grad", "double backward", "jvp"}
"""Compared by what they answer."""
OTHERWISE = NO_GRADIENTS | {"ensemble", "functional_call, others"}
"""Their answer is not the model's own: the twin is called the same way."""
EVAL_ONLY = {
    "vmap",
    "ensemble",
    "functional_call, others",
    "export",
    "twice",
    "checkpoint",
    "jvp",
    "grad",
    "double backward",
    "make_fx",
    "trace",
}
"""In training a batch norm writes its statistics, once more or once less."""


def _double_backward(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
    return second


class Program:
    """A model and what was made of it; ``log`` says each step in words."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.pristine: Model = made(self.random)
        self.kind = self.random.choice(["model", "model", "converted", "fused"])
        self.model: Any = copy.deepcopy(self.pristine)
        self.log = [repr(self.model)]
        if self.kind != "model":
            self.model.eval()
            self.model = ct.convert(self.model, fuse=self.kind == "fused")
        self.training = self.model.training
        self._made: dict[str, Any] = {}

    def set_mode(self, training: bool) -> None:
        """Training or evaluation; a fused model stays what it is."""
        if self.kind != "fused" and training != self.training:
            self.training = training
            self.model.train(training)
            self._made.clear()

    def data(self) -> torch.Tensor:
        """An input."""
        x = torch.randn(self.pristine.shape)
        form = self.random.choice(["plain", "plain", "last", "steps", "wide", "turned", "expanded", "one channel"])
        if form == "last" and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        if form == "steps":
            return torch.randn(2 * x.shape[0], *x.shape[1:])[::2]
        if form == "wide":
            return torch.randn(*x.shape[:-1], x.shape[-1] + 3)[..., 1:-2]
        if form == "expanded":
            return torch.randn(1, *x.shape[1:]).expand(x.shape)
        if form == "one channel":
            return torch.randn(x.shape[0], 1, *x.shape[2:]).expand(x.shape)
        return x.transpose(1, -1).contiguous().transpose(1, -1) if form == "turned" else x

    def twin(self, dtype: torch.dtype) -> nn.Module:
        """The same model of PyTorch's alone, with the weights as they are."""
        if self.kind == "fused":  # what was folded is its own reference, layer by layer in float64
            found = copy.deepcopy(self.model).to(dtype)
        else:
            found = copy.deepcopy(self.pristine).to(dtype)
            found.load_state_dict(self.model.state_dict())
            for p, own in zip(found.parameters(), self.model.parameters(), strict=True):
                p.requires_grad_(own.requires_grad)
        return found.train(self.training)

    def step(self) -> str | None:
        """What is wrong, or None."""
        pick = self.random.choice
        write, way = pick(list(WRITES)), pick(list(WAYS))
        mode = pick(["grad", "no_grad", "inference"])
        on, narrow = self.random.random() < 0.7, self.random.random() < 0.15
        if write in REMAKES:
            self._made.clear()
        try:
            with ct.enable() if self.random.random() < 0.5 else contextlib.nullcontext():
                WRITES[write](self)
        except Exception:
            try:  # a batch norm in training takes no single value; a result that is overwritten has no gradient
                self.twin(torch.float32)(self.data()).sum().backward()
            except Exception:
                return None
            raise
        if (way in EVAL_ONLY and self.training) or (way in NO_GRADIENTS and (mode != "grad" or narrow)):
            way = "plain"
        if mode == "inference" and way in RECORDED | UNLIKE_INFERENCE:
            mode = "no_grad"
        narrow = narrow and way in ("plain", "twice", "checkpoint", "functional_call", "copied")
        self.log.append(f"{write}; {way} {mode}{', enable()' * on}{', autocast' * narrow}, training={self.training}")
        x = self.data()
        wide, own = self.twin(torch.float64), self.twin(torch.float32)
        try:
            with self._pytorchs_own() if self.kind == "fused" else contextlib.nullcontext():
                called = WAYS[way](_As(self, wide)) if way in OTHERWISE else wide
                expected = self._run(called, wide, x.double(), mode, False)
                called = WAYS[way](_As(self, own)) if way in OTHERWISE else own
                eager = self._run(called, own, x, mode, narrow)
        except Exception:
            return None  # what PyTorch does not do
        if way not in self._made and not self._recorded(way, on):
            return None
        with ct.enable() if on else contextlib.nullcontext():
            called = self._made[way]
            got = self._run(called, called if way in OWN else self.model, x, mode, narrow)
        if way in OWN:
            del self._made[way]
        for name, value in expected.items():
            limit = LIMIT if name == "result" else GRADIENTS
            limit = NARROW * (1 if name == "result" else 5) if narrow else limit
            own = error(eager[name], value) if name in eager else 0.0
            limit = max(limit, 10 * own)
            found = error(got[name], value) if name in got else float("inf")
            # PyTorch itself may be wrong, as in bfloat16's gradients of 3-D kernels on 2x2x2 places.
            if own <= WRONG and not found <= limit:
                return f"{name}: error {found:.3g}, allowed {limit:.3g}, eager {own:.3g}, {self.kind}"
        return None

    @contextlib.contextmanager
    def _pytorchs_own(self) -> Iterator[None]:
        """The block's fused layers compute by PyTorch's kernels, layer by layer."""
        before = functional.plain_operators
        functional.plain_operators = lambda: True  # type: ignore[assignment]
        try:
            with BaseTorchFunctionMode():
                yield
        finally:
            functional.plain_operators = before

    def _recorded(self, way: str, on: bool) -> bool:
        """Make what a way calls; False where PyTorch cannot make it of its own model either."""
        try:
            with ct.enable() if on else contextlib.nullcontext():
                self._made[way] = WAYS[way](self)
        except Exception:
            try:
                WAYS[way](_As(self, self.twin(torch.float32)))
            except Exception:
                return False
            raise
        return True

    def _run(self, called: Any, module: Any, x: torch.Tensor, mode: str, narrow: bool) -> dict[str, torch.Tensor]:
        """The result; with gradients those of x and of the parameters; in training the statistics after it."""
        contexts = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
        found = {}
        with contexts[mode](), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            x = x.detach().requires_grad_(mode == "grad")  # a copy would lose the view's strides
            y = called(x)
            found["result"] = y
        if mode == "grad" and y.requires_grad:
            own = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
            weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
            grads = torch.autograd.grad((y * weights).sum(), [x, *(p for _, p in own)], allow_unused=True)
            found |= {
                f"gradient of {n}": g for n, g in zip(["x", *(n for n, _ in own)], grads, strict=True) if g is not None
            }
        if self.training:
            found |= {n: b.clone() for n, b in module.named_buffers() if b.is_floating_point()}
        return found


class _As:
    """A program with another model."""

    def __init__(self, program: Program, model: Any) -> None:
        self.model, self.pristine, self._dtype = model, program.pristine, next(model.parameters()).dtype

    def data(self) -> torch.Tensor:
        return torch.randn(self.pristine.shape, dtype=self._dtype)


def run(seed: int, tell: bool = False) -> str | None:
    """What is wrong with a seed, with its steps, or None."""
    program = None
    try:
        program = Program(seed)
        for _ in range(program.random.randint(2, 5)):
            wrong = program.step()
            if tell:
                print(program.log[-1], "->", wrong or "right", flush=True)
            if wrong is not None:
                return "\n".join([*program.log, wrong])
    except Exception:
        return "\n".join([*(program.log if program else []), traceback.format_exc(limit=-6)])
    finally:
        ct.disable()
        if program is not None and any("compile" in step for step in program.log):
            torch.compiler.reset()
    return None


def main() -> None:
    """Seeds from ``--first``, or where the last run stopped, in a child that may die."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--first", type=int, help="else where the last run stopped")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.seed is not None:
        wrong = run(given.seed, tell=True)
        print(wrong or "right")
        sys.exit(wrong is not None)
    end, seed = time.monotonic() + given.seconds, given.first
    state = given.child or STATE
    if seed is None:
        seed = int(state.read_text()) if state.exists() else 0
    elif not given.child:
        state = STATE.with_name(f"{STATE.name}-{seed}")
    if given.child:
        while time.monotonic() < end:
            state.write_text(str(seed))
            wrong = run(seed)
            if wrong is not None:
                print(f"--- python -m bench fuzz_torch --seed {seed}\n{wrong}", flush=True)
            seed += 1
            state.write_text(str(seed))
        return
    first = seed
    while (left := end - time.monotonic()) > 0:
        command = [*again("fuzz_torch"), "--child", str(state), "--first", str(seed), "--seconds", str(left)]
        status = subprocess.run(command, check=False).returncode
        seed = int(state.read_text())
        if status:
            print(f"--- python -m bench fuzz_torch --seed {seed}\nits process ended with {status}", flush=True)
            seed += 1
    print(f"seeds {first} to {seed - 1}")


if __name__ == "__main__":
    main()
