"""Labelled pictures for training: scikit-learn's digits, Fashion-MNIST, or a folder. Nothing is ever downloaded."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device.programs.kernels import Launch, build, config_macros, kernel_text
from ..elementwise.tensor import Tensor
from ..models.imagenet import MAX_PIXELS, open_picture

MAX_BYTES = 4 << 30
"""The most bytes of a data set that are read by default."""

FASHION_FOLDERS = (Path("/usr/share/datasets/fashion-mnist"),)
"""The folders that are searched for Fashion-MNIST: Debian's package dataset-fashion-mnist puts its files there."""
_INSTALL = "install Debian's dataset-fashion-mnist, or name the folder that holds its four files"
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_TEST_SHARE = 5  # One in this number of pictures of a folder is a test picture.


@dataclass(frozen=True)
class Pictures:
    """Pictures ``[n, channels, h, w]`` of bytes, labels ``[n]``, the same for testing, and the classes' names."""

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    largest: int = 255
    """The pixel value of white."""

    def first(self, images: int | None, test_images: int | None) -> Pictures:
        """The data set with the first pictures only. Raises InvalidArgument for counts below 1 or above its size."""
        for word, count, available in (
            ("images", images, len(self.images)),
            ("test images", test_images, len(self.test_images)),
        ):
            if count is not None and not 1 <= count <= available:
                raise InvalidArgument(f"{self.name} has {available} {word}, {count} were asked for")
        return Pictures(
            self.name,
            self.images[:images],
            self.labels[:images],
            self.test_images[:test_images],
            self.test_labels[:test_images],
            self.classes,
            self.largest,
        )


def load(name: str, *, most_pixels: int = MAX_PIXELS, most_bytes: int = MAX_BYTES) -> Pictures:
    """``digits``, ``fashion-mnist``, or a folder's path.

    A folder holds Fashion-MNIST's four files (``train-images-idx3-ubyte`` and so on, with ``.gz`` or without), or one
    folder of picture files for each class; of those pictures every fifth is for testing.
    ``most_pixels`` of one picture file and ``most_bytes`` of a data set are compared with what the files state, before
    memory is taken. Raises InvalidArgument for a data set that is missing, damaged, empty or larger.
    """
    if name == "digits":
        return _digits()
    if name == "fashion-mnist":
        for folder in FASHION_FOLDERS:
            if folder.is_dir():
                return _idx_folder(folder, "fashion-mnist", most_bytes)
        raise InvalidArgument(f"Fashion-MNIST is not at {', '.join(map(str, FASHION_FOLDERS))}: {_INSTALL}")
    folder = Path(name)
    if not folder.is_dir():
        raise InvalidArgument(f"{name} is neither digits, fashion-mnist nor a folder")
    if any(folder.glob("*-images-idx3-ubyte*")):
        return _idx_folder(folder, folder.name, most_bytes)
    return _class_folders(folder, most_pixels, most_bytes)


def _digits() -> Pictures:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InvalidArgument("the digits are scikit-learn's: pip install scikit-learn") from None
    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int32)
    # Neighbouring digits are by one writer: the test images are the last ones, which other writers wrote.
    split = len(images) * 4 // 5
    names = tuple(str(name) for name in bunch.target_names)
    return Pictures("digits", images[:split], labels[:split], images[split:], labels[split:], names, largest=16)


_FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _idx_folder(folder: Path, name: str, most: int) -> Pictures:
    arrays = []
    for part in ("train", "t10k"):
        images = _idx(folder, f"{part}-images-idx3-ubyte", 3, most)
        labels = _idx(folder, f"{part}-labels-idx1-ubyte", 1, most)
        if len(images) != len(labels) or not len(images):
            raise InvalidArgument(f"{folder}: {len(images)} {part} pictures and {len(labels)} labels")
        arrays += [images[:, None], labels.astype(np.int32)]
    count = int(max(arrays[1].max(), arrays[3].max())) + 1
    classes = _FASHION if count == len(_FASHION) else tuple(map(str, range(count)))
    return Pictures(name, *arrays, classes)


def _idx(folder: Path, name: str, axes: int, most: int) -> np.ndarray:
    """An array of bytes in the IDX format: two zero bytes, 8, the number of axes, big-endian sizes, the data."""
    path = next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)
    if path is None:
        raise InvalidArgument(f"{folder} has no {name}(.gz): {_INSTALL}")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * axes)
            sizes = tuple(int.from_bytes(head[4 + 4 * a : 8 + 4 * a], "big") for a in range(axes))
            is_valid = head[:4] == bytes((0, 0, 8, axes)) and len(head) == 4 + 4 * axes
            size = math.prod(sizes)
            if is_valid and size > most:  # A compressed file of a few bytes can state any size.
                raise InvalidArgument(f"{path} states {size} bytes, at most {most} are read")
            data = _read_whole(file, size) if is_valid else b""
            if not is_valid or len(data) != size or file.read(1):
                raise InvalidArgument(f"{path} is damaged or no IDX file of bytes with {axes} axes")
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    return np.frombuffer(data, np.uint8).reshape(sizes)


def _read_whole(file: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes, or all that exist; memory is allocated as they are read, because a header may be false."""
    parts, remaining = [], size
    while remaining and (part := file.read(min(remaining, 1 << 20))):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def _class_folders(folder: Path, most_pixels: int, most_bytes: int) -> Pictures:
    classes = tuple(sorted(part.name for part in folder.iterdir() if part.is_dir() and not part.name.startswith(".")))
    images: list[np.ndarray] = []
    labels: list[int] = []
    size: tuple[int, int] | None = None
    for label, name in enumerate(classes):
        for path in sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in _PICTURES):
            picture = open_picture(path, most_pixels)
            size = size or picture.size
            picture = picture.resize(size)
            if (len(images) + 1) * size[0] * size[1] * 3 > most_bytes:
                raise InvalidArgument(f"{folder} holds more than {most_bytes} bytes of pictures of {size[0]}x{size[1]}")
            images.append(np.asarray(picture, np.uint8).transpose(2, 0, 1))
            labels.append(label)
    if len(classes) < 2 or len(images) < 2 * _TEST_SHARE:
        raise InvalidArgument(
            f"{folder} must hold a folder of pictures for each of two classes or more, and ten pictures or more; got "
            f"{len(classes)} folders and {len(images)} pictures"
        )
    test = np.arange(len(images)) % _TEST_SHARE == _TEST_SHARE - 1
    stack, numbers = np.stack(images), np.array(labels, np.int32)
    return Pictures(folder.name, stack[~test], numbers[~test], stack[test], numbers[test], classes)


class Batches:
    """Pictures and labels on a queue's device; ``take`` gathers a batch without waiting."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, scale: float, queue: cl.CommandQueue) -> None:
        self.images = Tensor.from_numpy(np.ascontiguousarray(images, np.uint8), queue)
        self.labels = Tensor.from_numpy(labels.astype(np.int32), queue)
        self.scale, self.queue = np.float32(scale), queue
        width = math.prod(images.shape[1:])
        macros = config_macros({"width": width, "rows": len(images)})
        self._program = build(queue.context, macros + kernel_text("convdispatch.train", "take.cl"))
        self._width, self._launches = width, dict[int, tuple[Launch, Launch]]()

    def __len__(self) -> int:
        return self.images.shape[0]

    def order(self, rows: np.ndarray) -> Tensor:
        """An order of rows in device memory, for ``take``."""
        return Tensor.from_numpy(rows.astype(np.int32), self.queue)

    def take(self, order: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
        """``(pictures, labels)`` of ``order[start:start + count]``; pictures are float32, 0 to 1."""
        x = Tensor.empty((count, *self.images.shape[1:]), np.float32, self.queue)
        y = Tensor.empty((count,), np.int32, self.queue)
        if count not in self._launches:
            names = ("x", "rows", "first", "scale", "y")
            self._launches[count] = (
                Launch(self._program, "take", (self._width, count), None, " ".join(names), names=names),
                Launch(self._program, "take_labels", (count,), None, "x rows first y", names=names),
            )
        pictures, labels = self._launches[count]
        first = np.int64(start)
        pictures(self.queue, (self.images.base_data, order.base_data, first, self.scale, x.base_data))
        labels(self.queue, (self.labels.base_data, order.base_data, first, None, y.base_data))
        return x, y
