"""Source: a tensor as the product reads it, planes of 16-bit channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..geometry import chunks


@dataclass(frozen=True)
class Source:
    """A tensor that the product reads as planes of 16-bit channels: [image][pixel][plane][group][8 c8]."""

    name: str
    """Operand: x or y."""
    images: int
    groups: int
    c: int
    size: tuple[int, int, int]
    planes: int
    fold: bool = False
    direct: bool = False
    """Whether the tensor itself has this form, so that nothing is packed."""

    @property
    def c8(self) -> int:
        """Chunks of eight channels."""
        return chunks(self.c)

    @property
    def turn(self) -> int:
        """Chunks that neighbours write side by side when channels first become last."""
        return 8 if self.c8 > 4 else 4 if self.c8 > 2 else self.c8

    @property
    def plane(self) -> int:
        """Elements from plane to plane."""
        return self.groups * self.c8 * 8

    @property
    def group(self) -> int:
        """Elements from group to group."""
        return self.c8 * 8

    @property
    def pixel(self) -> int:
        """Elements from pixel to pixel."""
        return self.planes * self.plane

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return math.prod(self.size)

    @property
    def image(self) -> int:
        """Elements from image to image."""
        return self.pixels * self.pixel

    @property
    def axes(self) -> tuple[int, int, int]:
        """Elements from pixel to pixel along d, h, w."""
        return (self.size[1] * self.size[2] * self.pixel, self.size[2] * self.pixel, self.pixel)

    @property
    def bytes(self) -> int:
        """Bytes of the packed form."""
        return 0 if self.direct else self.images * self.image * 2
