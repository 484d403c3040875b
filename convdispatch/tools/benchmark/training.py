"""Where a net's training time goes: time by kind of operation, images a second, peak memory.

One step runs forward, backward and the optimiser on one profiling queue. Markers around every operation, forward and
on the tape, give its time on the device without waiting for it; whole steps are timed apart, without markers.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import InvalidArgument
from ...device import runtime
from ...device.tracing import tracing
from ...elementwise.tensor import Tensor
from ...models import catalogue
from ...nn import SGD, Tape
from ...nn.functional import cross_entropy
from ...selection.text_table import Column, Table, columns
from .quiet import LOAD, SCATTER, OtherProcesses, busy

if TYPE_CHECKING:
    from rich.console import Console

CONVOLUTIONS = frozenset({"convolution", "linear", "transposed_convolution"})
WARM_STEPS = 2  # steps that run before the timed ones
STEPS = 8  # steps that are timed as a whole
PROFILED_STEPS = 3  # steps with a marker around each operation


@dataclass
class Kind:
    """One kind of operation: milliseconds of a step, forward and backward, and how many calls."""

    name: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    calls: int = 0

    @property
    def ms(self) -> float:
        """The sum of the forward and the backward milliseconds."""
        return self.forward_ms + self.backward_ms


@dataclass
class TrainingReport:
    """The result of ``profile_training``."""

    net: str
    device: str
    mb: int
    layout: str
    math: str
    step_ms: float
    """The median milliseconds of whole training steps, each waited for at its end."""
    kinds: list[Kind]
    """The kinds of operation, the slowest first; the optimiser is one of them."""
    peak_bytes: int
    """The most bytes that the memory pools held in addition to parameters: activations, gradients and workspaces."""
    loss: tuple[float, float]
    """The loss on one batch before the first and after the last step; it must have fallen."""
    busy: list[str] = field(default_factory=list)
    """The signs that other work was running during the profile; empty on a quiet machine."""

    @property
    def images_per_second(self) -> float:
        """Images that whole steps train on."""
        return self.mb / self.step_ms * 1e3

    @property
    def share_beside_convolution(self) -> float:
        """Fraction of the operations' time that convolutions and linear maps do not take."""
        total = sum(kind.ms for kind in self.kinds)
        return sum(kind.ms for kind in self.kinds if kind.name not in CONVOLUTIONS) / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        names = ("images_per_second", "share_beside_convolution")
        return asdict(self) | {name: getattr(self, name) for name in names}


def profile_training(
    net: str,
    mb: int = 16,
    *,
    device: Any = None,
    layout: str = "nchw",
    steps: int = STEPS,
    say: Callable[[str, int], None] = lambda words, advance: None,
) -> TrainingReport:
    """Train a net of ``models.catalogue`` on random pictures for a few steps and say where the time goes.

    ``say(words, advance)`` hears what is done, and that so many of ``turns(steps)`` have ended.
    Raises InvalidArgument for an unknown net or a batch below 1.
    """
    if mb < 1:
        raise InvalidArgument(f"a batch has at least 1 picture, got {mb}")
    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found), properties=cl.command_queue_properties.PROFILING_ENABLE)
    say(f"{net}: making the net, compiling", 0)
    other_processes = OtherProcesses()
    step, loss = _stepper(net, mb, layout, queue)
    first_loss = loss()
    for _ in range(WARM_STEPS):
        step()
        queue.finish()
        say("", 1)
    peak, samples = 0, []
    for i in range(steps):
        say(f"{net}: step {i + 1} of {steps}", 0)
        start = time.perf_counter()
        step()
        queue.finish()
        samples.append((time.perf_counter() - start) * 1e3)
        peak = max(peak, runtime.memory_statistics(found).held_bytes)
        say("", 1)
    say(f"{net}: operations", 0)
    profile = _Profile(queue)
    for _ in range(PROFILED_STEPS):
        step(profile)
        say("", 1)
    kinds = profile.kinds(PROFILED_STEPS)
    info, load = runtime.device_info(found), other_processes.load()
    run = {"net": net, "device": str(info), "mb": mb, "layout": layout, "math": "float32"}
    found = {"step_ms": statistics.median(samples), "kinds": kinds, "peak_bytes": peak, "loss": (first_loss, loss())}
    return TrainingReport(**run, **found, busy=disturbances(samples, load, info))


def turns(steps: int = STEPS) -> int:
    """Return the number of steps of all kinds that ``profile_training`` reports as progress."""
    return WARM_STEPS + steps + PROFILED_STEPS


def disturbances(samples: Sequence[float], load: float | None, info: DeviceInfo) -> list[str]:
    """What whole steps (milliseconds) and the load of other processes say of a busy machine, a phrase each."""
    phrases = []
    if info.type == "cpu" and load is not None and load >= LOAD * info.compute_units:
        phrases.append(f"a load of {load:g} by others on {info.compute_units} processors")
    low, high = np.percentile(samples, (20, 80))
    width = float(high - low) / statistics.median(samples)
    if width >= SCATTER:
        phrases.append(f"{len(samples)} steps scatter by {width:.0%} of their median")
    return phrases


def _stepper(
    name: str, mb: int, layout: str, queue: cl.CommandQueue
) -> tuple[Callable[..., None], Callable[[], float]]:
    """``step(profile=None)`` trains once; ``loss()`` is the present loss on the same batch."""
    net = catalogue.create(name, None, layout, queue)
    size, channels = net.SIZE, net.CHANNELS  # type: ignore[attr-defined]
    random = np.random.default_rng(0)
    shape = (mb, channels, size, size) if layout == "nchw" else (mb, size, size, channels)
    x = Tensor.from_numpy(random.standard_normal(shape, dtype=np.float32), queue)
    labels = Tensor.from_numpy(random.integers(0, 10, mb).astype(np.int32), queue)
    optimizer = SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step(profile: _Profile | None = None) -> None:
        tape = Tape() if profile is None else _ProfiledTape(profile)
        with tape, tracing(None if profile is None else profile.note):
            result = cross_entropy(net(x), labels)
        tape.backward(result)
        if profile is None:
            optimizer.step()
        else:
            with profile.timed("optimiser", "backward_ms"):
                optimizer.step()

    def loss() -> float:
        net.eval()
        value = float(cross_entropy(net(x), labels).numpy())
        net.train()
        return value

    net.train()
    return step, loss


class _Profile:
    """Pairs of markers on the queue around operations, whose times are read when all have run."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._queue = queue
        self._pairs: list[tuple[str, str, Any, Any]] = []
        self.current = ""

    def note(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation between markers; those it calls are part of it."""
        self.current = function.__name__
        with tracing(None), self.timed(self.current, "forward_ms"):
            return function(*args, **kwargs)

    @contextlib.contextmanager
    def timed(self, name: str, part: str) -> Iterator[None]:
        """Put a marker on the queue before the block and one after it."""
        start_marker = cl.enqueue_marker(self._queue)
        yield
        self._pairs.append((name, part, start_marker, cl.enqueue_marker(self._queue)))

    def kinds(self, steps: int) -> list[Kind]:
        """Milliseconds of one step by kind."""
        self._queue.finish()
        by_name: dict[str, Kind] = {}
        for name, part, start, end in self._pairs:
            kind = by_name.setdefault(name, Kind(name))
            setattr(kind, part, getattr(kind, part) + (end.profile.end - start.profile.end) * 1e-6 / steps)
            kind.calls += part == "forward_ms" or name == "optimiser"
        for kind in by_name.values():
            kind.calls //= steps
        return sorted(by_name.values(), key=lambda kind: -kind.ms)


class _ProfiledTape(Tape):
    """A tape that times each backward function under the name of its operation."""

    def __init__(self, profile: _Profile) -> None:
        super().__init__()
        self._profile = profile

    def record(self, results: Any, inputs: Any, backward: Callable[..., Any]) -> None:
        name = self._profile.current

        def timed(*gradients: Any) -> Any:
            with self._profile.timed(name, "backward_ms"):
                return backward(*gradients)

        super().record(results, inputs, timed)


def show_training(report: TrainingReport, console: Console) -> None:
    """Print a table of the kinds of operation and their times."""
    if report.busy:
        console.print(busy(report.busy), style="red", highlight=False)
    doubt = " (busy machine: not to be trusted)" if report.busy else ""
    total = sum(kind.ms for kind in report.kinds) or 1.0
    table = Table(
        Column("operation", "name"),
        *columns("number", "calls", "forward ms", "backward ms", "share %"),
        title=f"{report.net}, a training step at batch {report.mb}, {report.layout}, on {report.device}",
        caption=f"{report.step_ms:.2f} ms a step, {report.images_per_second:,.0f} images/s{doubt}; "
        f"{100 * report.share_beside_convolution:.1f} % beside convolutions and linear maps; "
        f"{report.peak_bytes / 2**20:,.0f} MiB held at most; loss {report.loss[0]:.3f} to {report.loss[1]:.3f}",
    )
    for kind in report.kinds:
        numbers = (f"{kind.forward_ms:.3f}", f"{kind.backward_ms:.3f}", f"{100 * kind.ms / total:.1f}")
        table.add_row(kind.name, str(kind.calls), *numbers)
    console.print(table)
