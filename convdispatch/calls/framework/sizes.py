"""Which calls wait for their kernel on a CPU: a layer's first sizes do, further ones are the framework's at first.

A net whose inputs have one size gets its kernels at once. Where sizes vary, as in speech, text and detection, most of
them come once or twice, and compiling for each would take longer than all of its calls: there a size is compiled, in
the background, when it was met ``MEETINGS`` times.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

MEETINGS = 3
"""The number of calls of a further size after which its kernel is compiled, because the size will probably return."""
FIRST_SIZES = 16
"""The most sizes of similar layers whose calls wait for their kernel: a net has such layers at several resolutions,
each with weights of its own. Weights that are computed anew for each call, as weight norm's, are told from these by
this number alone."""
REMEMBERED = 4096
"""The number of layers, and of sizes, that are remembered."""


class _Layer:
    """Layers alike: hashes of the sizes that waited, and by id of weights whether these are there still."""

    def __init__(self) -> None:
        self.first: set[int] = set()
        self.weights: dict[int, Callable[[], bool]] = {}
        self.prepared = False
        """Whether some sizes were compiled before their first call, so that a caller must not count sizes by itself."""


class Sizes:
    """The layers and sizes that were encountered so far. Safe from several threads."""

    def __init__(self) -> None:
        self._layers: OrderedDict[Hashable, _Layer] = OrderedDict()
        self._met: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def is_first(self, layer: Hashable, size: Hashable, weights: int, alive: Callable[[], bool]) -> bool:
        """Whether a call waits for its kernel: the first size of these weights, or one that waited before.

        ``layer`` is what layers alike have in common, ``weights`` an id, which ``alive()`` says is still theirs.
        """
        with self._lock:
            known, number = self._layers.setdefault(layer, _Layer()), hash(size)
            self._layers.move_to_end(layer)
            if len(self._layers) > REMEMBERED:
                self._layers.popitem(last=False)
            seen = known.weights.get(weights)
            first = number in known.first or (len(known.first) < FIRST_SIZES and (seen is None or not seen()))
            if first:
                known.first.add(number)
                if len(known.weights) >= REMEMBERED:
                    known.weights = {key: each for key, each in known.weights.items() if each()}
                known.weights[weights] = alive
            return first

    def prepare(self, layer: Hashable) -> None:
        """Note that some sizes of a layer were compiled ahead of their first call."""
        with self._lock:
            self._layers.setdefault(layer, _Layer()).prepared = True

    def is_prepared(self, layer: Hashable) -> bool:
        """Whether ``prepare`` was called for this layer."""
        found = self._layers.get(layer)
        return found is not None and found.prepared

    def met(self, size: Hashable) -> int:
        """How often a further size was encountered, this call included."""
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
