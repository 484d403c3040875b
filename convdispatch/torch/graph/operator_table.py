"""ATen's operators that have a counterpart among ours: by name, what computes it on ours' tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS: dict[str, Callable[..., Any]] = {}
"""By the operator's name; each takes the net first, then the operator's own arguments."""
OF_SIZES = {
    f"aten.{name}.default" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
}
"""Those that read of a tensor its sizes alone."""
PLACES = {"aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim"}
"""Those whose result, or second result, are places (int64) of numbers."""
TAKING = {"aten.embedding.default"}
"""Those that take numbers at places that are computed."""
_NAMES = "alias clone contiguous detach expand permute reshape unsqueeze _unsafe_view view"
MOVING = {f"aten.{name}.default" for name in _NAMES.split()}
MOVING |= {"aten.squeeze.dim", "aten.squeeze.dims", "aten.transpose.int"}
"""Those that move such places as they move numbers."""


def operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function under such names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return enter
