"""Where a net's training time goes: time by kind of operation, images a second, peak memory, element-wise bandwidth.

One step runs forward, backward and the optimiser on one profiling queue. Markers around every operation, forward and
on the tape, give its time on the device without waiting for it; whole steps are timed apart, without markers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...api.device import DeviceInfo
from ...api.errors import InvalidArgument
from ...device import runtime
from ...device.tracing import tracing
from ...elementwise import apply
from ...models import catalogue
from ...nn import SGD, Tape
from ...nn.functional import cross_entropy
from ...tensor import Tensor
from .quiet import LOAD, SCATTER, Others

if TYPE_CHECKING:
    import pyopencl as cl

CONVOLUTIONS = frozenset({"convolution", "linear", "transposed_convolution"})
WARM, STEPS, PROFILED = 2, 8, 3
SIZES = tuple(1 << exponent for exponent in range(12, 29, 2))
"""Bytes of a tensor of the bandwidth's curve: 4 KiB to 256 MiB."""


@dataclass
class Kind:
    """One kind of operation: milliseconds of a step, forward and backward, and how many calls."""

    name: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    calls: int = 0

    @property
    def ms(self) -> float:
        """Both directions."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second, read and written, of ``a + 2 b`` over tensors of ``nbytes`` each, and of a copy of them."""

    nbytes: int
    elementwise: float
    copy: float


@dataclass
class TrainingReport:
    """What ``profile_training`` found."""

    net: str
    device: str
    mb: int
    layout: str
    math: str
    step_ms: float
    """Median of whole steps, waited for at their end."""
    kinds: list[Kind]
    """By falling time; the optimiser is one of them."""
    peak_bytes: int
    """Most memory that the pools held, activations, gradients and workspaces, beside parameters."""
    loss: tuple[float, float]
    """Before the first and after the last step, on the same batch: it must have fallen."""
    bandwidth: list[Bandwidth] = field(default_factory=list)
    spans: list[tuple[str, str, float, float]] = field(default_factory=list)
    """Operations of the profiled steps by the device's clock: kind, part, start and length in milliseconds."""
    busy: list[str] = field(default_factory=list)
    """What says that other work was running meanwhile; empty on a quiet machine."""

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
        """For JSON."""
        found = asdict(self)
        found["images_per_second"] = self.images_per_second
        found["share_beside_convolution"] = self.share_beside_convolution
        return found


def profile_training(
    net: str,
    mb: int = 16,
    *,
    device: Any = None,
    layout: str = "nchw",
    classes: int | None = None,
    steps: int = STEPS,
    sizes: Sequence[int] | None = None,
    say: Callable[[str, int], None] = lambda words, advance: None,
) -> TrainingReport:
    """Train a net of ``models.catalogue`` on random pictures for a few steps and say where the time goes.

    ``sizes`` are the bytes of the bandwidth's tensors, ``SIZES`` where none are given. ``say(words, advance)`` hears
    what is done, and that so many of ``turns(steps, sizes)`` have ended.
    Raises InvalidArgument for an unknown net or a batch below 1.
    """
    if mb < 1:
        raise InvalidArgument(f"a batch has at least 1 picture, got {mb}")
    import pyopencl as cl

    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found), properties=cl.command_queue_properties.PROFILING_ENABLE)
    say(f"{net}: making the net, compiling", 0)
    others = Others()
    step, loss = _stepper(net, mb, layout, classes, queue)
    before = loss()
    for _ in range(WARM):
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
    for _ in range(PROFILED):
        step(profile)
        say("", 1)
    kinds = profile.kinds(PROFILED)
    info, load = runtime.device_info(found), others.load()
    say("element-wise bandwidth", 0)
    bandwidth = []
    for size in SIZES if sizes is None else sizes:
        bandwidth.append(_bandwidth(queue, size))
        say("", 1)
    return TrainingReport(
        net,
        str(info),
        mb,
        layout,
        "float32",
        statistics.median(samples),
        kinds,
        peak,
        (before, loss()),
        bandwidth,
        profile.spans(),
        disturbances(samples, load, info),
    )


def turns(steps: int = STEPS, sizes: Sequence[int] | None = None) -> int:
    """What ``profile_training`` counts: steps of all kinds, and sizes."""
    return WARM + steps + PROFILED + len(SIZES if sizes is None else sizes)


def disturbances(samples: Sequence[float], load: float | None, info: DeviceInfo) -> list[str]:
    """What whole steps (milliseconds) and the load of other processes say of a busy machine, a phrase each."""
    said = []
    if info.type == "cpu" and load is not None and load >= LOAD * info.compute_units:
        said.append(f"a load of {load:g} by others on {info.compute_units} processors")
    low, high = np.percentile(samples, (20, 80))
    width = float(high - low) / statistics.median(samples)
    if width >= SCATTER:
        said.append(f"{len(samples)} steps scatter by {width:.0%} of their median")
    return said


def _stepper(
    name: str, mb: int, layout: str, classes: int | None, queue: cl.CommandQueue
) -> tuple[Callable[..., None], Callable[[], float]]:
    """``step(profile=None)`` trains once; ``loss()`` is the present loss on the same batch."""
    net = catalogue.create(name, classes, layout, queue)
    size, channels = net.SIZE, net.CHANNELS  # type: ignore[attr-defined]
    random = np.random.default_rng(0)
    shape = (mb, channels, size, size) if layout == "nchw" else (mb, size, size, channels)
    x = Tensor.from_numpy(random.standard_normal(shape, dtype=np.float32), queue)
    labels = Tensor.from_numpy(random.integers(0, classes or 10, mb).astype(np.int32), queue)
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
    """Pairs of markers around operations, read when all is done."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._queue = queue
        self._pairs: list[tuple[str, str, Any, Any]] = []
        self.current = ""

    def note(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation between markers; those it calls are part of it."""
        self.current = function.__name__
        with tracing(None), self.timed(self.current, "forward_ms"):
            return function(*args, **kwargs)

    def timed(self, name: str, part: str) -> _Timed:
        """A block between markers."""
        return _Timed(self, name, part)

    def mark(self) -> Any:
        import pyopencl as cl

        return cl.enqueue_marker(self._queue)

    def kinds(self, steps: int) -> list[Kind]:
        """Milliseconds of one step by kind."""
        self._queue.finish()
        found: dict[str, Kind] = {}
        for name, part, first, last in self._pairs:
            kind = found.setdefault(name, Kind(name))
            setattr(kind, part, getattr(kind, part) + (last.profile.end - first.profile.end) * 1e-6 / steps)
            kind.calls += part == "forward_ms" or name == "optimiser"
        for kind in found.values():
            kind.calls //= steps
        return sorted(found.values(), key=lambda kind: -kind.ms)

    def spans(self) -> list[tuple[str, str, float, float]]:
        """Each operation on the device's clock, milliseconds from the first one."""
        ends = [(name, part, first.profile.end, last.profile.end) for name, part, first, last in self._pairs]
        start = min((first for _, _, first, _ in ends), default=0)
        return [(name, part, (first - start) * 1e-6, (last - first) * 1e-6) for name, part, first, last in ends]


class _Timed:
    def __init__(self, profile: _Profile, name: str, part: str) -> None:
        self._profile, self._name, self._part = profile, name, part

    def __enter__(self) -> None:
        self._first = self._profile.mark()

    def __exit__(self, *error: object) -> None:
        self._profile._pairs.append((self._name, self._part, self._first, self._profile.mark()))


class _ProfiledTape(Tape):
    """A tape whose notes are timed, each under the name of the operation that made it."""

    def __init__(self, profile: _Profile) -> None:
        super().__init__()
        self._profile = profile

    def record(self, results: Any, inputs: Any, backward: Callable[..., Any]) -> None:
        name = self._profile.current

        def timed(*gradients: Any) -> Any:
            with self._profile.timed(name, "backward_ms"):
                return backward(*gradients)

        super().record(results, inputs, timed)


def _bandwidth(queue: cl.CommandQueue, nbytes: int) -> Bandwidth:
    a, b, c = (Tensor.empty((nbytes // 4,), np.float32, queue) for _ in range(3))
    for tensor, value in ((a, 1.0), (b, 2.0), (c, 3.0)):
        tensor.write(np.full(tensor.shape, value, np.float32))
    repeat = max(3, min(2000, (1 << 29) // nbytes))

    def rate(work: Callable[[], Any], moved: int) -> float:
        best = 0.0
        work()
        for _ in range(3):
            queue.finish()
            start = time.perf_counter()
            for _ in range(repeat):
                work()
            queue.finish()
            best = max(best, moved * repeat / (time.perf_counter() - start))
        return best

    add = rate(lambda: apply("a + 2 * b", a=a, b=b, out=c), 3 * nbytes)
    return Bandwidth(nbytes, add, rate(lambda: runtime.copy(queue, c.base_data, a.base_data, nbytes), 2 * nbytes))
