"""Decides which calls on a CPU wait for their kernel: those of a layer's first sizes; further ones start with the
framework's kernel.

A net whose inputs have one size gets its kernels at once. If sizes vary, as in speech, text and detection, most of them
come once or twice, and compiling for each would take longer than all of its calls: then a size is compiled in the
background when it has come ``MEETINGS`` times.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

MEETINGS = 3
"""The number of calls of a further size after which its kernel is compiled, because the size will probably return."""
FIRST_SIZES = 16
"""The most sizes of similar layers whose calls wait for their kernel: a net has such layers at several resolutions,
each with its own weights. Weights that each call computes anew, as weight norm does, also look like new layers; this
limit stops their calls from waiting."""
REMEMBERED = 4096
"""The most layers, and the most sizes, that are remembered."""


class _Layer:
    """Similar layers: the hashes of the sizes that waited, and by the id of weights whether they are still alive."""

    def __init__(self) -> None:
        self.first: set[int] = set()
        self.weights: dict[int, Callable[[], bool]] = {}
        self.prepared = False
        """Whether some sizes were compiled before their first call, so that a caller must ask here about each size."""


class Sizes:
    """The layers and sizes that have come so far. Safe from several threads."""

    def __init__(self) -> None:
        self._layers: OrderedDict[Hashable, _Layer] = OrderedDict()
        self._met: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def is_first(self, layer: Hashable, size: Hashable, weights: int, alive: Callable[[], bool]) -> bool:
        """Whether a call waits for its kernel: for the first size of these weights, or a size that waited before.

        ``layer`` is a key that similar layers share, ``weights`` the id of the weights, ``alive()`` whether they live.
        """
        with self._lock:
            similar, number = self._layers.setdefault(layer, _Layer()), hash(size)
            self._layers.move_to_end(layer)
            if len(self._layers) > REMEMBERED:
                self._layers.popitem(last=False)
            living = similar.weights.get(weights)
            first = number in similar.first or (len(similar.first) < FIRST_SIZES and (living is None or not living()))
            if first:
                similar.first.add(number)
                if len(similar.weights) >= REMEMBERED:
                    similar.weights = {key: each for key, each in similar.weights.items() if each()}
                similar.weights[weights] = alive
            return first

    def prepare(self, layer: Hashable) -> None:
        """Note that some sizes of a layer were compiled ahead of their first call."""
        with self._lock:
            self._layers.setdefault(layer, _Layer()).prepared = True

    def is_prepared(self, layer: Hashable) -> bool:
        """Whether ``prepare`` was called for this layer."""
        similar = self._layers.get(layer)
        return similar is not None and similar.prepared

    def met(self, size: Hashable) -> int:
        """Count a call of a further size; returns how often that size has come."""
        with self._lock:
            number = hash(size)
            count = self._met[number] = self._met.pop(number, 0) + 1
            if len(self._met) > REMEMBERED:
                self._met.popitem(last=False)
        return count

    def forget(self) -> None:
        """Forget all layers: the next size of each counts as its first."""
        with self._lock:
            self._layers.clear()
            self._met.clear()
