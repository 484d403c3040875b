"""The implementation of ``convdispatch classify``: the classes of a picture, and the time of each layer of the network.

EfficientNet-lite0, or any ONNX file of ImageNet's classes, runs at batch 1 on one device. Besides the names the report
holds, for every convolution, the solver that dispatch chose and its time, and the time of the whole net.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..device import runtime
from ..elementwise.tensor import Tensor
from ..inference import InferenceNet
from ..models.efficientnet import CLASSES, MEAN, SCALE, SIZE, EfficientNetLite0
from ..models.imagenet import MAX_PIXELS, class_names, read_picture, sample_pictures
from ..nn import Module, observe
from ..nn.functional import softmax
from ..selection import dispatch
from ..selection.text_table import Column, Table, columns
from .model_file import IMAGENET, scaled_picture

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
    """The result of ``classify``; printing it with ``rich`` shows its tables."""

    device: str
    layout: str
    pictures: tuple[Picture, ...]
    layers: tuple[LayerTime, ...] = ()
    net_ms: float | None = None
    """The median milliseconds of the whole net, warm, at batch 1, from the input on the device to the logits on the
    device."""
    runs: int = 0
    model: str = "EfficientNet-lite0"

    def __rich_console__(self, console: object, options: object) -> Iterator[Any]:
        for picture in self.pictures:
            yield picture_table(picture)
        if self.layers:
            yield layer_table(self)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``classify``. Raises InvalidArgument for numbers out of range."""

    top: int = 5
    """The number of classes that are named for each picture."""
    layout: str = "nchw"
    """The layout of EfficientNet-lite0; a model file has its own."""
    runs: int = 10
    """The number of samples of each layer's time; 0 for no timing."""
    most_pixels: int = MAX_PIXELS
    """The most pixels of a picture; larger pictures are refused."""
    mean: Sequence[float] = IMAGENET[0]
    """The mean per colour that is subtracted from pictures (RGB, 0 to 255) for a model file."""
    scale: Sequence[float] = IMAGENET[1]
    """The deviation per colour by which pictures are divided after the mean is subtracted."""

    def __post_init__(self) -> None:
        if not 1 <= self.top <= CLASSES:
            raise InvalidArgument(f"top must be 1 to {CLASSES}, got {self.top}")
        if self.runs < 0:
            raise InvalidArgument(f"runs must be 0 or more, got {self.runs}")


def classify(
    paths: Sequence[str | PathLike[str]] = (),
    *,
    model: str | PathLike[str] | None = None,
    device: Any = None,
    report: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> ClassifyReport:
    """Name what is on each picture (two samples when no path is given), then time the net layer by layer.

    ``model`` is an ONNX file of ImageNet's thousand classes (or 1001, the first for none of them) to take instead of
    EfficientNet-lite0; its layers are those of the inference form. ``device`` is what ``runtime.find_device`` takes;
    ``report`` is told in words what happens next; ``options`` are Options' fields. Policies in force apply.

    Raises InvalidArgument for a path that is no readable picture or an extra that is not installed, before anything
    is computed; NoDevice; NoSolver.
    """
    chosen = Options(**options)
    files = list(paths) or sample_pictures()
    run = _with_efficientnet if model is None else functools.partial(_with_model, model)
    return run(files, device, report, chosen)


def _with_efficientnet(
    files: Sequence[Any], device: Any, report: Callable[[str], None], options: Options
) -> ClassifyReport:
    inputs = [_input(read_picture(file, SIZE, most_pixels=options.most_pixels), options.layout) for file in files]
    # ``class_names`` raises an error for an optional package that is not installed, before anything is computed.
    class_names()
    queue = runtime.queue(runtime.find_device(device))
    where = runtime.device_info(queue.device)
    report("reading the weights")
    net = EfficientNetLite0.pretrained(options.layout, queue)
    report(f"compiling for {where}")
    pictures = tuple(
        _picture(file, softmax(net(Tensor.from_numpy(array, queue))).numpy()[0], options.top)
        for file, array in zip(files, inputs, strict=True)
    )
    if not options.runs:
        return ClassifyReport(str(where), options.layout, pictures)
    report("timing the net and each layer")
    net_ms, layers = time_net(net, Tensor.from_numpy(inputs[0], queue), options.runs)
    return ClassifyReport(str(where), options.layout, pictures, layers, net_ms, options.runs)


def _with_model(
    model: str | PathLike[str], files: Sequence[Any], device: Any, report: Callable[[str], None], options: Options
) -> ClassifyReport:
    """``classify`` with an ONNX file's net."""
    from ..onnx import load

    class_names()
    report("reading the model")
    net = load(model, device=device)
    if len(net.inputs) != 1:
        raise InvalidArgument(f"a net of pictures has one input, {model} has {', '.join(map(str, net.inputs))}")
    scaling = {"mean": options.mean, "scale": options.scale, "most_pixels": options.most_pixels}
    inputs = [scaled_picture(file, net.inputs[0], **scaling) for file in files]
    where = runtime.device_info(net.queue.device)
    report(f"compiling for {where}")
    pictures = tuple(
        _picture(file, _probabilities(net(array), model), options.top)
        for file, array in zip(files, inputs, strict=True)
    )
    title, built = Path(model).name, net.latest
    layout = built.layout or "as traced" if built is not None else "as traced"
    if not options.runs or built is None:
        return ClassifyReport(str(where), layout, pictures, model=title)
    report("timing the net and each layer")
    net_ms, layers = _time_form(built, options.runs)
    return ClassifyReport(str(where), layout, pictures, layers, net_ms, options.runs, title)


def _picture(file: Any, probabilities: np.ndarray, top: int) -> Picture:
    """The most probable classes of a picture."""
    best = np.argsort(-probabilities, kind="stable")[:top].tolist()
    return Picture(str(file), tuple(Guess(i, class_names()[i], float(probabilities[i])) for i in best))


def _probabilities(result: Any, model: Any) -> np.ndarray:
    """Probabilities of ImageNet's classes from a net's result. Raises InvalidArgument for another number of classes."""
    output = result[0] if isinstance(result, tuple) else result
    values = np.ravel(output[:1]).astype(np.float64)
    if values.size not in (CLASSES, CLASSES + 1):
        raise InvalidArgument(f"{model} answers {values.size} numbers a picture, expected ImageNet's {CLASSES} classes")
    # The network returned logits, which are converted to probabilities here.
    if values.min() < 0 or abs(values.sum() - 1) > 1e-2:
        values = np.exp(values - values.max())
        values /= values.sum()
    return values[-CLASSES:]


def _time_form(built: InferenceNet, runs: int) -> tuple[float, tuple[LayerTime, ...]]:
    """Milliseconds of a built net and of its convolutions as they run in it; NaN where the device does not time one."""
    (net_ms,) = _medians([built.run], built.queue, runs)
    timed = [(layer, ms) for layer, ms in zip(built.layers, built.layer_ms(runs), strict=True) if layer.problem]
    return net_ms, tuple(
        LayerTime(f"conv{number}", layer.problem, layer.solver, layer.source, ms)
        for number, (layer, ms) in enumerate(timed, 1)
    )


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
    calls: list[tuple[Module, tuple[Tensor, ...]]] = []
    with observe(lambda layer, x, residual: calls.append((layer, (x,) if residual is None else (x, residual)))):
        net(x)
    works = [lambda: net(x), *(functools.partial(layer, *operands) for layer, operands in calls)]
    net_ms, *layers_ms = _medians(works, x.queue, runs)
    layers = []
    for (layer, operands), ms in zip(calls, layers_ms, strict=True):
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
        sample(work, 1)  # The first run compiles the kernels and warms up the device.
        repeats.append(max(1, min(100, round(_SAMPLE_MS / max(sample(work, 2), 1e-3)))))
    rounds = [[sample(work, repeat) for work, repeat in zip(works, repeats, strict=True)] for _ in range(runs)]
    return [statistics.median(samples) for samples in zip(*rounds, strict=True)]


# --- tables for the terminal -----------------------------------------------------------------------------------------


def picture_table(picture: Picture) -> Table:
    """The guesses for one picture."""
    table = Table(Column("class"), Column("name", "name"), Column("probability"), title=Path(picture.path).name)
    for guess in picture.guesses:
        table.add_row(str(guess.index), guess.name, f"{guess.probability:.1%}")
    return table


def layer_table(report: ClassifyReport) -> Table:
    """Layer, problem, solver, milliseconds and GFLOP/s; the footer holds the sums and the whole net."""
    total = sum(layer.ms for layer in report.layers if not math.isnan(layer.ms))
    flops = sum(layer.problem.flops for layer in report.layers)
    title = f"{report.model}, batch 1, {report.layout}, on {report.device}"
    caption = f"whole net, warm: {report.net_ms:.2f} ms; median of {report.runs} samples everywhere"
    table = Table(*columns("name", "layer", "problem", "solver"), *columns("number", "ms", "GFLOP/s"), title=title)
    for layer in report.layers:
        table.add_row(layer.name, str(layer.problem), layer.solver, f"{layer.ms:.3f}", f"{layer.gflops:.1f}")
    table.add_row("sum of layers", "", "", f"{total:.3f}", f"{flops / (total * 1e6):.1f}")
    table.caption = caption
    return table
