"""Layout: where a problem's packed tensors, scales and parts lie."""

from __future__ import annotations

from convdispatch.api import Areas

from ..scales import Scales
from .tiling import Tiling


class Layout:
    """Where packed tensors and parts lie: byte offsets in the workspace, or in the packed weights' own buffer."""

    def __init__(self, tiling: Tiling) -> None:
        self.constant = tiling.data and tiling.problem.constant_weights
        areas = Areas()
        self.at: dict[str, int] = {}
        for source in tiling.sources:
            self.at[source.name] = areas.add(source.bytes)
        weights = Areas() if self.constant else areas
        if tiling.data and not tiling.direct_weights:
            self.at["w"] = weights.add(tiling.weights_bytes)
        self.scales = Scales(tiling.problem, areas, weights) if tiling.format.scaled else None
        self.packed_size = weights.size if self.constant else 0
        self.partial = areas.add(tiling.partial_bytes)
        self.maps = areas.add(tiling.maps_bytes)
        self.size = areas.size

    def marks_at(self, letter: str) -> int:
        """Ints before the marks of the product's A or B, in its buffer."""
        return self.scales.marks_at(self.scales.named(letter))
