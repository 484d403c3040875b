"""Loss scaling for float16 gradients, which are 0 below 6e-8: the loss is multiplied, the gradients divided after.

The scale backs off where a gradient came out infinite and grows again after steps that went well, as in Micikevicius
et al. 2018. It lies on the device and so does the decision: nothing waits for the host, and a captured step holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..elementwise import apply, full, reduce
from ..elementwise.tensor import Tensor

MAX_SCALE = 2.0**24
"""The largest factor by which the loss is scaled."""
MIN_SCALE = 1.0
"""The smallest factor by which the loss is scaled."""
_UPDATE = """
scale = where(bad > 0, max(scale * 0.5, least), where(well + 1 >= interval, min(scale * 2, largest), scale))
well = where(bad > 0, 0, where(well + 1 >= interval, 0, well + 1))
"""


class LossScaler:
    """A scale that halves after a step with an infinite or NaN gradient and doubles after ``interval`` without one.

    tape.backward(loss, scaler.gradient)
    optimizer.step(scaler)
    """

    def __init__(self, scale: float = 2.0**16, interval: int = 2000, queue: Any = None) -> None:
        if not MIN_SCALE <= scale <= MAX_SCALE or interval < 1:
            raise InvalidArgument(
                f"a scale is {MIN_SCALE:g} to {MAX_SCALE:g} and an interval 1 or more, got {scale} and {interval}"
            )
        self.interval = interval
        self._scale, self._well, self._bad = (full((1,), value, queue=queue) for value in (scale, 0.0, 0.0))

    @property
    def scale(self) -> float:
        """The present scale; waits for it."""
        return float(self._scale.numpy()[0])

    @property
    def gradient(self) -> Tensor:
        """The gradient of a scaled loss with respect to the loss, one number: what ``Tape.backward`` begins with."""
        return self._scale.reshape(())

    def check(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """(how many of the gradients are infinite or NaN, the scale), each of shape (1,)."""
        reduce("sum", "where(abs(g) <= 3.4028234e38, 0.0, 1.0)", keepdims=True, g=gradients, out=self._bad)
        return self._bad, self._scale

    def update(self) -> None:
        """Change the scale by the result of the last ``check``."""
        apply(
            ";".join(_UPDATE.strip().split("\n")),
            **{"scale": self._scale, "well": self._well, "bad": self._bad},
            **{"least": MIN_SCALE, "largest": MAX_SCALE, "interval": float(self.interval)},
        )

    def state_dict(self) -> dict[str, np.ndarray]:
        """Scale and count of steps that went well, for checkpoints."""
        return {"scale": self._scale.numpy(), "well": self._well.numpy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. Raises InvalidArgument unless it fits."""
        if {name: np.shape(value) for name, value in state.items()} != {"scale": (1,), "well": (1,)}:
            raise InvalidArgument(f"a loss scaler's state is scale and well of one number each, got {sorted(state)}")
        self._scale.write(np.asarray(state["scale"]))
        self._well.write(np.asarray(state["well"]))
