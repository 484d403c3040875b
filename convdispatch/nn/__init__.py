"""The thin framework, everything of a net that is not convolution: layers, losses, tape, optimisers, checkpoints.

Names are imported when first used: PyTorch's door wants one kernel of pooling, not all of this, in its first step.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())


def __dir__() -> list[str]:
    return __all__
