"""Picture files to the arrays that ImageNet's nets take. Needs Pillow, which the extra ``demo`` brings."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..api.errors import InvalidArgument

if TYPE_CHECKING:
    from PIL import Image

MARGIN = 32
"""A picture is scaled until its shorter side is size + MARGIN pixels, and the net sees its middle, size by size
pixels."""
MAX_PIXELS = 64 << 20
"""The most pixels of a picture file that are read; they take some 300 MB."""
_EXTRA = "pip install 'convdispatch[demo]'"


def open_picture(path: str | os.PathLike[str]) -> Image.Image:
    """A picture file in RGB, turned upright as EXIF says; 16-bit grey is scaled to 8 bits.

    Raises InvalidArgument when the file is missing, a folder, no picture that Pillow reads, of more than
    MAX_PIXELS (which is compared with the file's header), or of numbers whose white is not known.
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
        with warnings.catch_warnings():
            # The limit MAX_PIXELS, which is checked below, replaces Pillow's limit.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as opened:
                pixels = opened.size[0] * opened.size[1]
                if pixels > MAX_PIXELS:
                    size = "x".join(map(str, opened.size))
                    raise InvalidArgument(f"{file} has {size} pixels, at most {MAX_PIXELS} are read: scale it down")
                return _eight_bits(ImageOps.exif_transpose(opened), file).convert("RGB")
    except InvalidArgument:
        raise
    except Exception as error:  # Pillow's decoders raise exceptions of many types, which differ between its versions.
        raise InvalidArgument(f"{file} cannot be read as a picture: {error}") from None


def _eight_bits(picture: Image.Image, file: Path) -> Image.Image:
    """The picture with 16-bit values scaled to 0 to 255, which Pillow's own conversion would clip."""
    from PIL import Image

    mode = picture.mode
    if mode == "F" or (mode == "I" and file.suffix.lower() in (".tif", ".tiff")):
        raise InvalidArgument(f"{file} is of 32-bit numbers, whose white is not known: save it with 8 or 16 bits")
    if mode == "I" or mode.startswith("I;16"):
        values = np.asarray(picture).astype(np.float64)
        return Image.fromarray(np.clip(np.rint(values / 257), 0, 255).astype(np.uint8))
    return picture


def read_picture(path: str | os.PathLike[str], size: int) -> np.ndarray:
    """The middle of a picture as ``[size, size, 3]`` float32, RGB, 0 to 255; bicubic. Raises as ``open_picture``."""
    picture = open_picture(path)
    from PIL import Image  # open_picture has imported Pillow already

    width, height = picture.size
    side = max(1, min(width, height) * size // (size + MARGIN))
    left, top = (width - side + 1) // 2, (height - side + 1) // 2
    scaled = picture.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.asarray(scaled, np.float32)
