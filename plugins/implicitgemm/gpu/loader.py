"""The elements of a slice that each work item of a group loads, and the vectors in which it loads them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(unsafe_hash=True)
class Loader:
    """How the work items of a group cover a BK x BX slice of a tensor, and in which vectors they load it.

    ``kf`` consecutive items are along k, then ``xl`` along x, the rest along k again; each item loads ``vk`` elements
    along k, or ``vx`` along x, as one vector.
    """

    letter: str
    bx: int
    bk: int
    items: int
    kf: int = 1
    xl: int = 1
    vx: int = 1
    vk: int = 1

    def __post_init__(self) -> None:
        self.kh = self.items // max(1, self.kf * self.xl)
        """Number of groups of ``kf`` work items along k."""
        self.k_step, self.x_step = self.kf * self.kh * self.vk, self.xl * self.vx
        """Elements along k and along x that all work items of a group together load in one slot."""
        self.k_slots, self.x_slots = self.bk // max(1, self.k_step), self.bx // max(1, self.x_step)
        """Number of loads (slots) of a work item along k and along x."""
        self.vec = self.vx == 4 or self.vk == 4
        """Whether each load reads a vector of four elements."""
        self.type = "ACC4" if self.vec else "ACC"
        """OpenCL type of the elements that one load (slot) reads."""
        self.pitch = self.bx + (4 if self.kf > 1 else 0)
        """Elements from row to row of the slice; 4 more if consecutive items write to consecutive rows."""

    @property
    def fits(self) -> bool:
        """Whether the work items cover the slice evenly."""
        if self.kf < 1 or self.xl < 1 or self.items % (self.kf * self.xl):
            return False
        return self.bk % self.k_step == 0 and self.bx % self.x_step == 0


def across(letter: str, bx: int, bk: int, items: int, wide: bool) -> Loader:
    """Return a loader whose consecutive work items are along x, for tensors in which x is contiguous."""
    vx = 4 if wide else 1
    return Loader(letter, bx, bk, items, 1, min(items, bx // vx), vx, 1)


def along(letter: str, bx: int, bk: int, items: int, wide: bool) -> Loader:
    """Return a loader whose consecutive items are along k, so few that a warp writes to different banks."""
    vk = 4 if wide and bk % 4 == 0 else 1
    units = bk // vk
    kf = math.gcd(units, 2 if vk == 4 else 8)
    kh = units // kf
    while kh > 1 and (items % (kf * kh) or items // (kf * kh) > bx or bx % (items // (kf * kh))):
        kh = next(k for k in range(kh - 1, 0, -1) if units // kf % k == 0)
    return Loader(letter, bx, bk, items, kf, min(bx, items // (kf * kh)), 1, vk)
