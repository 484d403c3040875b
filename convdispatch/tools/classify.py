"""The job behind ``convdispatch classify``: what is on a picture, and what each layer of the net that says so costs.

EfficientNet-lite0, or any ONNX file of ImageNet's classes, runs at batch 1 on one device. Besides the names the report
holds, for every convolution, the solver that dispatch chose and its time, and the time of the whole net.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..calls.conv import constant, conv
from ..device import runtime
from ..inference import InferenceNet
from ..models.efficientnet import CLASSES, MEAN, SCALE, SIZE, EfficientNetLite0
from ..models.imagenet import MOST_PIXELS, class_names, read_picture, sample_pictures
from ..nn import Module, observe
from ..nn.functional import softmax
from ..selection import dispatch
from ..selection.text_table import Column, Table, columns
from ..tensor import Tensor
from .model_file import IMAGENET, scaled_picture

if TYPE_CHECKING:
    import pyopencl as cl
    from rich.console import Console

_SAMPLE_MS = 2.0
"""A short layer is repeated until one sample takes about this long, so that the clock and the waiting cost little."""


@dataclass(frozen=True)
class Guess:
    """A class and its probability."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True)
class Picture:
    """A file and its most probable classes, best first."""

    path: str
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class LayerTime:
    """One convolution of the net: its problem, the solver that ran it and why that one, its median time."""

    name: str
    problem: ConvProblem
    solver: str
    source: str
    ms: float

    @property
    def gflops(self) -> float:
        """Direct-sum operations a second, in 10⁹."""
        return self.problem.flops / (self.ms * 1e6)


@dataclass(frozen=True)
class ClassifyReport:
    """What ``classify`` found; printing it with rich shows its tables."""

    device: str
    layout: str
    pictures: tuple[Picture, ...]
    layers: tuple[LayerTime, ...] = ()
    net_ms: float | None = None
    """Median of the whole net, warm, at batch 1, from the input on the device to the logits on the device."""
    runs: int = 0
    model: str = "EfficientNet-lite0"

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        layers = [
            {
                "layer": layer.name,
                "problem": str(layer.problem),
                "solver": layer.solver,
                "source": layer.source,
                "ms": layer.ms,
                "gflops": layer.gflops,
            }
            for layer in self.layers
        ]
        return {
            "model": self.model,
            "device": self.device,
            "layout": self.layout,
            "pictures": [asdict(picture) for picture in self.pictures],
            "layers": layers,
            "net_ms": self.net_ms,
            "runs": self.runs,
        }

    def __rich_console__(self, console: object, options: object) -> Iterator[Any]:
        for picture in self.pictures:
            yield picture_table(picture)
        if self.layers:
            yield layer_table(self)

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(self)


def classify(
    paths: Sequence[str | PathLike[str]] = (),
    *,
    top: int = 5,
    device: Any = None,
    layout: str = "nchw",
    runs: int = 10,
    most_pixels: int = MOST_PIXELS,
    report: Callable[[str], None] | None = None,
    model: str | PathLike[str] | None = None,
    mean: Sequence[float] = IMAGENET[0],
    scale: Sequence[float] = IMAGENET[1],
) -> ClassifyReport:
    """Name what is on each picture (two samples when no path is given), then time the net layer by layer.

    ``model`` is an ONNX file of ImageNet's thousand classes (or 1001, the first for none of them) to take instead of
    EfficientNet-lite0; its pictures are RGB, 0 to 255, minus ``mean``, over ``scale``; its layout is the file's, and
    its layers are those of the inference form. ``top`` names a picture; ``device`` is what ``runtime.find_device``
    takes; ``runs`` samples a layer, 0 for no timing; ``most_pixels`` of a picture are read; ``report`` is told in words
    what happens next. Policies in force apply.

    Raises InvalidArgument for a path that is no readable picture or an extra that is not installed, before anything
    is computed; NoDevice; NoSolver.
    """
    if not 1 <= top <= CLASSES:
        raise InvalidArgument(f"top must be 1 to {CLASSES}, got {top}")
    if runs < 0:
        raise InvalidArgument(f"runs must be 0 or more, got {runs}")
    tell = report or (lambda words: None)
    if model is not None:
        return _classify_by(
            model, list(paths) or sample_pictures(), top, device, runs, tell, (mean, scale), most_pixels
        )
    files = list(paths) or sample_pictures()
    inputs = [_input(read_picture(file, SIZE, most_pixels=most_pixels), layout) for file in files]
    class_names()  # what is not installed is told before anything is computed
    queue = runtime.queue(runtime.find_device(device))
    where = runtime.device_info(queue.device)
    tell("reading the weights")
    net = EfficientNetLite0.pretrained(layout, queue)
    tell(f"compiling for {where}")
    pictures = tuple(
        _picture(file, softmax(net(Tensor.from_numpy(array, queue))).numpy()[0], top)
        for file, array in zip(files, inputs, strict=True)
    )
    if not runs:
        return ClassifyReport(str(where), layout, pictures)
    tell("timing the net and each layer")
    net_ms, layers = time_net(net, Tensor.from_numpy(inputs[0], queue), runs)
    return ClassifyReport(str(where), layout, pictures, layers, net_ms, runs)


def _classify_by(
    model: str | PathLike[str],
    files: Sequence[str | PathLike[str]],
    top: int,
    device: Any,
    runs: int,
    tell: Callable[[str], None],
    normalised: tuple[Sequence[float], Sequence[float]],
    most_pixels: int,
) -> ClassifyReport:
    """``classify`` with an ONNX file's net."""
    from ..onnx import load

    class_names()  # what is not installed is told before anything is computed
    tell("reading the model")
    net = load(model, device=device)
    if len(net.inputs) != 1:
        raise InvalidArgument(f"a net of pictures has one input, {model} has {', '.join(map(str, net.inputs))}")
    inputs = [scaled_picture(file, net.inputs[0], *normalised, most_pixels=most_pixels) for file in files]
    where = runtime.device_info(net.queue.device)
    tell(f"compiling for {where}")
    pictures = tuple(
        _picture(file, _probabilities(net(array), model), top) for file, array in zip(files, inputs, strict=True)
    )
    title, built = Path(model).name, net.latest
    layout = built.layout or "as traced" if built is not None else "as traced"
    if not runs or built is None:
        return ClassifyReport(str(where), layout, pictures, model=title)
    tell("timing the net and each layer")
    net_ms, layers = _time_form(built, runs)
    return ClassifyReport(str(where), layout, pictures, layers, net_ms, runs, title)


def _picture(file: Any, probabilities: np.ndarray, top: int) -> Picture:
    """The most probable classes of a picture."""
    best = np.argsort(-probabilities, kind="stable")[:top].tolist()
    return Picture(str(file), tuple(Guess(i, class_names()[i], float(probabilities[i])) for i in best))


def _probabilities(result: Any, model: Any) -> np.ndarray:
    """Of ImageNet's classes, from a net's logits or probabilities. Raises InvalidArgument for other results."""
    first = result[0] if isinstance(result, tuple) else result
    values = np.ravel(first[:1]).astype(np.float64)
    if values.size not in (CLASSES, CLASSES + 1):
        raise InvalidArgument(f"{model} answers {values.size} numbers a picture, expected ImageNet's {CLASSES} classes")
    if values.min() < 0 or abs(values.sum() - 1) > 1e-2:  # logits
        values = np.exp(values - values.max())
        values /= values.sum()
    return values[-CLASSES:]


def _time_form(built: InferenceNet, runs: int) -> tuple[float, tuple[LayerTime, ...]]:
    """Milliseconds of a built net, and of its convolutions, each alone on random data."""
    queue = built.queue
    works: list[Callable[[], object]] = [built.run]
    layers = [layer for layer in built.layers if layer.problem is not None]
    for layer in layers:
        rng, problem = np.random.default_rng(0), layer.problem
        shapes = [problem.x_shape, problem.w_shape]
        x, w = (Tensor.from_numpy(rng.standard_normal(shape).astype(problem.dtype), queue) for shape in shapes)
        bias = Tensor.from_numpy(np.zeros(problem.oc, problem.dtype), queue) if problem.bias else None
        residual = Tensor.from_numpy(np.zeros(problem.y_shape, problem.dtype), queue) if problem.residual else None
        works.append(functools.partial(_conv_of, problem, x, constant(w), bias, residual))
    net_ms, *layers_ms = _medians(works, queue, runs)
    return net_ms, tuple(
        LayerTime(f"conv{place}", layer.problem, layer.solver, layer.source, ms)
        for place, (layer, ms) in enumerate(zip(layers, layers_ms, strict=True), 1)
    )


def _conv_of(problem: ConvProblem, x: Tensor, w: Any, bias: Any, residual: Any) -> Any:
    letters = [[getattr(problem, letter + axis) for axis in problem.axes] for letter in "sd"]
    pads = [(getattr(problem, f"p{axis}"), getattr(problem, f"p{axis}_r")) for axis in problem.axes]
    options = {"groups": problem.g, "activation": problem.activation, "layout": problem.layout, "math": problem.math}
    return conv(x, w, bias, stride=letters[0], padding=pads, dilation=letters[1], residual=residual, **options)


def _input(picture: np.ndarray, layout: str) -> np.ndarray:
    scaled = (picture[None] - np.float32(MEAN)) / np.float32(SCALE)
    return scaled if layout == "nhwc" else np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def time_net(net: Module, x: Tensor, runs: int) -> tuple[float, tuple[LayerTime, ...]]:
    """Milliseconds of the whole net on x, and the times of its convolutional layers, each alone on what it gets there.

    Every figure is the median of ``runs`` samples, taken in rounds of one a layer and one of the net, so that a drift
    of the clock falls on all alike. A layer alone finds its data in the cache as far as they fit and its launches
    overlap, so the sum of all layers can be below the net's time.
    """
    names = {id(module): name for name, module in net.named_modules()}
    seen: list[tuple[Module, tuple[Tensor, ...]]] = []
    with observe(lambda layer, x, residual: seen.append((layer, (x,) if residual is None else (x, residual)))):
        net(x)
    works = [lambda: net(x), *(functools.partial(layer, *operands) for layer, operands in seen)]
    net_ms, *layers_ms = _medians(works, x.queue, runs)
    layers = []
    for (layer, operands), ms in zip(seen, layers_ms, strict=True):
        problem = layer.problem(operands[0].shape, len(operands) > 1)
        prepared = dispatch.prepare(problem, x.context)
        layers.append(LayerTime(names[id(layer)], problem, prepared.solver.name, prepared.source, ms))
    return net_ms, tuple(layers)


def _medians(works: Sequence[Callable[[], object]], queue: cl.CommandQueue, runs: int) -> list[float]:
    """Median milliseconds of each of ``works``, which enqueue on ``queue``, over ``runs`` interleaved samples."""

    def sample(work: Callable[[], object], repeat: int) -> float:
        queue.finish()
        start = time.perf_counter_ns()
        for _ in range(repeat):
            work()
        queue.finish()
        return (time.perf_counter_ns() - start) / (1e6 * repeat)

    repeats = []
    for work in works:
        sample(work, 1)  # compiles and warms up
        repeats.append(max(1, min(100, round(_SAMPLE_MS / max(sample(work, 2), 1e-3)))))
    rounds = [[sample(work, repeat) for work, repeat in zip(works, repeats, strict=True)] for _ in range(runs)]
    return [statistics.median(samples) for samples in zip(*rounds, strict=True)]


# --- tables ----------------------------------------------------------------------------------------------------------


def picture_table(picture: Picture) -> Table:
    """The guesses for one picture."""
    table = Table(Column("class"), Column("name", "name"), Column("probability"), title=Path(picture.path).name)
    for guess in picture.guesses:
        table.add_row(str(guess.index), guess.name, f"{guess.probability:.1%}")
    return table


def layer_table(report: ClassifyReport) -> Table:
    """Layer, problem, solver, milliseconds and GFLOP/s; the footer holds the sums and the whole net."""
    total = sum(layer.ms for layer in report.layers)
    flops = sum(layer.problem.flops for layer in report.layers)
    title = f"{report.model}, batch 1, {report.layout}, on {report.device}"
    caption = f"whole net, warm: {report.net_ms:.2f} ms; median of {report.runs} samples everywhere"
    table = Table(*columns("name", "layer", "problem", "solver"), *columns("number", "ms", "GFLOP/s"), title=title)
    for layer in report.layers:
        table.add_row(layer.name, str(layer.problem), layer.solver, f"{layer.ms:.3f}", f"{layer.gflops:.1f}")
    table.add_row("sum of layers", "", "", f"{total:.3f}", f"{flops / (total * 1e6):.1f}")
    table.caption = caption
    return table
