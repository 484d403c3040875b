"""One training run: its settings, its state, and its steps over epochs in an order that the seed determines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..elementwise import apply, full
from ..elementwise.tensor import Tensor
from ..nn import (
    SGD,
    Adam,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    LossScaler,
    MaxPool2d,
    Module,
    Optimizer,
    Sequential,
    Tape,
    autocast,
    capture,
)
from ..nn.functional import cross_entropy
from .data import Batches, Pictures

PRECISIONS = ("float32", "float16", "bfloat16")
_TEST_BATCH = 250


@dataclass(frozen=True)
class Settings:
    """All settings on which a training run depends, except the device. Raises InvalidArgument for invalid numbers."""

    data: str = "fashion-mnist"
    """The data set: ``digits``, ``fashion-mnist`` or a folder; see ``data.load``."""
    images: int | None = None
    """The number of images to train on, the first of the data set; ``test_images`` is that of the test."""
    test_images: int | None = None
    epochs: int = 2
    batch: int = 64
    optimizer: str = "sgd"
    """The optimizer: ``sgd`` or ``adam``."""
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    precision: str = "float32"
    """The dtype in which products are computed: ``float32``, ``bfloat16``, or ``float16`` with a loss that is scaled.
    Weights, sums, the loss and the optimiser's state are float32 whatever it is."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("lr", 0), ("momentum", 0), ("weight_decay", 0)):
            value = getattr(self, name)
            if not value >= least or value == float("inf"):
                raise InvalidArgument(f"{name} must be {least} or more, got {value}")
        if self.precision not in PRECISIONS:
            raise InvalidArgument(f"the precision is {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.optimizer not in ("sgd", "adam"):
            raise InvalidArgument(f"the optimizer is sgd or adam, got {self.optimizer!r}")


class Run:
    """The state of a training run: net, optimiser, data and the number of steps done."""

    def __init__(self, settings: Settings, data: Pictures, queue: Any) -> None:
        self.settings, self.queue = settings, queue
        if min(data.images.shape[2:]) < 4:
            raise InvalidArgument(f"pictures are 4 pixels or more along each side, got {data.images.shape[2:]}")
        scale = 1.0 / data.largest
        self.training = Batches(data.images, data.labels, scale, queue)
        self.testing = Batches(data.test_images, data.test_labels, scale, queue)
        self.test_labels = data.test_labels
        _, channels, height, width = data.images.shape
        options = {"dropout": settings.dropout, "queue": queue, "seed": settings.seed}
        self.net: Module = small_net(channels, (height, width), len(data.classes), **options)
        self.optimizer = _optimizer(settings, self.net)
        self.scaler = LossScaler(queue=queue) if settings.precision == "float16" else None
        self.steps_per_epoch = -(-len(self.training) // settings.batch)
        self.total = self.steps_per_epoch * settings.epochs
        self.losses = full((self.total,), 0.0, queue=queue)
        self.step = 0
        self._epoch, self._order = -1, self.losses
        self._gradients = capture(self._backward)

    def advance(self) -> None:
        """Make one training step without waiting; the loss stays on the device."""
        epoch, index = divmod(self.step, self.steps_per_epoch)
        if epoch != self._epoch:
            rows = np.random.default_rng((self.settings.seed, epoch)).permutation(len(self.training))
            self._epoch, self._order = epoch, self.training.order(rows)
        start = index * self.settings.batch
        x, labels = self.training.take(self._order, start, min(self.settings.batch, len(self.training) - start))
        loss = self._gradients(x, labels)
        self.optimizer.step(self.scaler)
        apply("x", x=loss.reshape(1), out=self.losses[self.step : self.step + 1])
        self.step += 1

    def _backward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a batch, and set the parameters' gradients."""
        with autocast(self.settings.precision), Tape() as tape:
            loss = cross_entropy(self.net(x).astype(np.float32), labels)
        tape.backward(loss, None if self.scaler is None else self.scaler.gradient)
        return loss

    def loss(self) -> float:
        """Wait for the last step, and return its loss."""
        return float(self.losses[self.step - 1].numpy())

    def accuracy(self) -> float:
        """Share of the test images whose class is found."""
        self.net.eval()
        order, right = self.testing.order(np.arange(len(self.testing))), 0
        for start in range(0, len(self.testing), _TEST_BATCH):
            x, _ = self.testing.take(order, start, min(_TEST_BATCH, len(self.testing) - start))
            found = self.net(x).numpy().argmax(1)
            right += int((found == self.test_labels[start : start + len(found)]).sum())
        self.net.train()
        return right / len(self.testing)


def _optimizer(settings: Settings, net: Module) -> Optimizer:
    if settings.optimizer == "adam":
        return Adam(net.parameters(), settings.lr, weight_decay=settings.weight_decay)
    return SGD(net.parameters(), settings.lr, settings.momentum, settings.weight_decay)


def small_net(
    channels: int,
    size: tuple[int, int],
    classes: int,
    *,
    dropout: float = 0.0,
    queue: cl.CommandQueue | None = None,
    seed: int = 0,
) -> Sequential:
    """Two 3×3 convolutions with 32 and 64 channels, each relu and halved by max pooling; linear to 128, relu, classes.

    Pictures ``[mb, channels, *size]`` to logits ``[mb, classes]``; sizes are 4 or more.
    """
    rng = np.random.default_rng(seed)
    features = 64 * (size[0] // 4) * (size[1] // 4)
    dropouts = [Dropout(dropout, queue=queue, seed=seed)] if dropout else []
    return Sequential(
        Conv2d(channels, 32, 3, padding=1, activation="relu", queue=queue, rng=rng),
        MaxPool2d(2),
        Conv2d(32, 64, 3, padding=1, activation="relu", queue=queue, rng=rng),
        MaxPool2d(2),
        Flatten(),
        Linear(features, 128, activation="relu", queue=queue, rng=rng),
        *dropouts,
        Linear(128, classes, queue=queue, rng=rng),
    )


# _DOTS[r][c] is the bit of the dot in row r, column c of a Unicode Braille character.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def curve(values: Sequence[float], width: int = 60, height: int = 10) -> str:
    """Draw ``values`` from left to right; each column of dots is the mean of some values. The scale is at the left."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    columns = min(2 * width, len(finite))
    cuts = [len(finite) * i // columns for i in range(columns + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    rows, cells = 4 * height, [[0] * width for _ in range(height)]
    for i, mean in enumerate(means):
        column = i * (2 * width - 1) // max(1, columns - 1)
        row = round((high - mean) / (high - low) * (rows - 1)) if high > low else rows - 1
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    lines = ["".join(chr(0x2800 + cell) for cell in line).rstrip("\u2800") for line in cells]
    labels = [f"{high:8.3g}", *[" " * 8] * (height - 2), f"{low:8.3g}"]
    return "\n".join(f"{label} │{line}" for label, line in zip(labels, lines, strict=True))
