"""Trains a small net on scikit-learn's digits, or on Fashion-MNIST from Debian's package dataset-fashion-mnist.

    $ python examples/train.py digits --epochs 10 --checkpoint digits.npz

The same command continues a run from its checkpoint. A run that was killed and continued ends with the weights of an
uninterrupted one, on the same device with the same solvers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convdispatch.elementwise.tensor import Tensor
from convdispatch.nn import (
    SGD,
    Adam,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Sequential,
    Tape,
)
from convdispatch.nn.functional import cross_entropy
from convdispatch.runtime import find_device, queue

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
TEST_BATCH = 250


@dataclass
class Pictures:
    """Pictures ``[n, channels, h, w]`` of values from 0 to 1 and their labels, for training and for testing."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def digits() -> Pictures:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = (bunch.images[:, None] / 16).astype(np.float32), bunch.target.astype(np.int32)
    split = len(images) * 4 // 5  # Neighbouring digits are by one writer, so the last ones are by other writers.
    return Pictures(images[:split], labels[:split], images[split:], labels[split:])


def fashion_mnist(folder: Path = FASHION_MNIST) -> Pictures:
    arrays = []
    for part in ("train", "t10k"):
        for name, header, shape in (("images-idx3", 16, (-1, 1, 28, 28)), ("labels-idx1", 8, (-1,))):
            with gzip.open(folder / f"{part}-{name}-ubyte.gz") as file:
                arrays.append(np.frombuffer(file.read(), np.uint8, offset=header).reshape(shape))
    images, labels, test_images, test_labels = arrays
    scaled = (images / np.float32(255), labels.astype(np.int32), test_images / np.float32(255))
    return Pictures(*scaled, test_labels.astype(np.int32))


def small_net(channels: int, size: tuple[int, int], classes: int, **options: Any) -> Sequential:
    """Two 3x3 convolutions, each halved by max pooling; linear to 128 features, dropout, and linear to the classes."""
    dropout, seed = options.pop("dropout", 0.0), options.pop("seed", 0)
    options["rng"] = np.random.default_rng(seed)
    return Sequential(
        Conv2d(channels, 32, 3, padding=1, activation="relu", **options),
        MaxPool2d(2),
        Conv2d(32, 64, 3, padding=1, activation="relu", **options),
        MaxPool2d(2),
        Flatten(),
        Linear(64 * (size[0] // 4) * (size[1] // 4), 128, activation="relu", **options),
        *([Dropout(dropout, seed=seed)] if dropout else []),
        Linear(128, classes, **options),
    )


class Run:
    """A training run: the net, its optimizer and the losses so far."""

    def __init__(self, data: Pictures, settings: argparse.Namespace) -> None:
        self.data, self.settings, self.losses = data, settings, []
        self.queue = queue(find_device(settings.device))
        classes = int(max(data.labels.max(), data.test_labels.max())) + 1
        options = {"queue": self.queue, "dropout": settings.dropout, "seed": settings.seed}
        self.net = small_net(data.images.shape[1], data.images.shape[2:], classes, **options)
        parameters = self.net.parameters()
        adam = settings.optimizer == "adam"
        self.optimizer = Adam(parameters, settings.lr) if adam else SGD(parameters, settings.lr, settings.momentum)
        self.steps_per_epoch = math.ceil(len(data.images) / settings.batch)

    def step(self) -> None:
        """Train on the next batch, in an order that the seed and the epoch determine."""
        epoch, index = divmod(len(self.losses), self.steps_per_epoch)
        order = np.random.default_rng((self.settings.seed, epoch)).permutation(len(self.data.images))
        rows = order[index * self.settings.batch : (index + 1) * self.settings.batch]
        x, labels = (Tensor.from_numpy(array[rows], self.queue) for array in (self.data.images, self.data.labels))
        with Tape() as tape:
            loss = cross_entropy(self.net(x), labels)
        tape.backward(loss)
        self.optimizer.step()
        self.losses.append(float(loss.numpy()))

    def accuracy(self) -> float:
        """The share of the test pictures whose class is found."""
        self.net.eval()
        right = 0
        for start in range(0, len(self.data.test_images), TEST_BATCH):
            rows = slice(start, start + TEST_BATCH)
            logits = self.net(Tensor.from_numpy(self.data.test_images[rows], self.queue))
            right += int((logits.numpy().argmax(1) == self.data.test_labels[rows]).sum())
        self.net.train()
        return right / len(self.data.test_images)

    def _parts(self) -> dict[str, Any]:
        return {"model": self.net, "optimizer": self.optimizer}

    def _dropouts(self) -> list[Dropout]:
        return [module for _, module in self.net.named_modules() if isinstance(module, Dropout)]

    def save(self, path: Path) -> None:
        """Write all that the next step depends on; the file is replaced when the new one is complete."""
        tensors: dict[str, Any] = {"losses": np.array(self.losses)}
        for name, part in self._parts().items():
            tensors |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
        tensors["dropout"] = np.array([json.dumps(part.random.bit_generator.state) for part in self._dropouts()], "U")
        draft = path.with_name(f".{path.name}.part")
        with draft.open("wb") as file:
            np.savez(file, **tensors)
        draft.replace(path)

    def restore(self, path: Path) -> None:
        """Continue from a file that ``save`` wrote."""
        with np.load(path) as file:
            tensors = dict(file)
        self.losses = tensors.pop("losses").tolist()
        for name, part in self._parts().items():
            state = {key.removeprefix(f"{name}."): tensors[key] for key in tensors if key.startswith(f"{name}.")}
            part.load_state_dict(state)
        for part, state in zip(self._dropouts(), tensors["dropout"], strict=True):
            part.random.bit_generator.state = json.loads(str(state))


def train(data: Pictures, settings: argparse.Namespace) -> Run:
    """Train for ``settings.epochs``, from the checkpoint if there is one."""
    run, path = Run(data, settings), settings.checkpoint
    if path is not None and path.exists():
        run.restore(path)
    while len(run.losses) < settings.epochs * run.steps_per_epoch:
        run.step()
        if path is not None and (len(run.losses) % settings.every == 0 or len(run.losses) % run.steps_per_epoch == 0):
            run.save(path)
    return run


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", choices=["digits", "fashion-mnist"])
    options.add_argument("--images", type=int, help="Only the first so many pictures.")
    options.add_argument("--test-images", type=int)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    options.add_argument("--lr", type=float, default=0.05)
    options.add_argument("--momentum", type=float, default=0.9)
    options.add_argument("--dropout", type=float, default=0.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--checkpoint", type=Path)
    options.add_argument("--every", type=int, default=200, help="Steps between checkpoints.")
    options.add_argument("--device")
    return options


def main() -> None:
    settings = parser().parse_args()
    data = digits() if settings.data == "digits" else fashion_mnist()
    data = Pictures(
        data.images[: settings.images],
        data.labels[: settings.images],
        data.test_images[: settings.test_images],
        data.test_labels[: settings.test_images],
    )
    start = time.perf_counter()
    run = train(data, settings)
    seconds = time.perf_counter() - start
    last = run.losses[-run.steps_per_epoch :]
    print(f"accuracy {run.accuracy():.2%}, loss {np.mean(last):.4f} in the last epoch, {seconds:.1f} s")


if __name__ == "__main__":
    main()
