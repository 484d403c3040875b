"""SGD with momentum and weight decay, and Adam (Kingma and Ba 2015): one kernel a step.

An optimiser lays all parameters of one device into one buffer, and their gradients into another, so that a step is one
launch however many parameters there are. Each Parameter stays the object it was; its memory moves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..elementwise import apply, fill, full, reduce
from ..elementwise.tensor import Parameter, Tensor


class Optimizer:
    """The base class of optimisers: parameters, gradients and the optimiser's state are flat buffers of equal
    length."""

    state_names: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise InvalidArgument("an optimiser needs parameters, got none")
        for parameter in self.parameters:
            if not isinstance(parameter, Parameter):
                raise InvalidArgument(f"an optimiser changes Parameters, got {type(parameter).__name__}")
            if parameter.dtype != self.parameters[0].dtype or parameter.queue != self.parameters[0].queue:
                raise InvalidArgument("an optimiser's parameters are of one dtype and on one queue")
        self.lr, self.steps = float(lr), 0
        self._lay_out()
        self.state = {
            name: full(self.values.shape, 0.0, self.values.dtype, self.values.queue) for name in self.state_names
        }

    def _lay_out(self) -> None:
        example = self.parameters[0]
        itemsize = example.dtype.itemsize
        unit = max(128, runtime.device_info(example.queue.device).buffer_alignment) // itemsize
        starts, end = [], 0
        for parameter in self.parameters:
            starts.append(end)
            end += -(-max(1, parameter.size) // unit) * unit
        # The padding between parameters stays zero, because its gradients are zero.
        self.values, self.gradients = _flat(end, example), _flat(end, example)
        self._starts = starts
        for parameter, start in zip(self.parameters, starts, strict=True):
            apply("x", x=parameter, out=self.values[start : start + parameter.size].reshape(parameter.shape))
            parameter.base_data = _part(self.values, start, parameter)
            gradient, memory = parameter.grad, _part(self.gradients, start, parameter)
            parameter.grad = Tensor(memory, parameter.shape, parameter.dtype, parameter.queue)
            parameter.offset, parameter.strides = 0, parameter.grad.strides
            if gradient is not None:
                apply("x", x=gradient, out=parameter.grad)

    def zero_grad(self) -> None:
        """Set all gradients to zero; needed only before ``backward(accumulate=True)``."""
        fill(self.gradients, 0.0)

    def step(self, scaler: LossScaler | None = None) -> None:
        """Change the parameters by what their gradients say.

        With a ``scaler`` the gradients are divided by its scale, and where one is infinite or NaN nothing changes but
        the scale and the count of steps; the host learns nothing of it, so nothing waits.
        """
        self.steps += 1
        if scaler is None:
            self._update(self._text(), {})
            return
        bad, scale = scaler.check(self.gradients)
        self._update(_where_finite(self._text(), self.written), {"bad": bad, "scale": scale})
        scaler.update()

    written: tuple[str, ...] = ()
    """The names in the formula ``_text`` of the tensors that a step changes."""

    def _text(self) -> str:
        """The formula of a step, in the parameter p, the gradient g and the state."""
        raise NotImplementedError

    def _update(self, text: str, scaling: dict[str, Tensor]) -> None:
        raise NotImplementedError

    # --- the optimizer's state as arrays, for checkpoints ------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """The optimiser's own numbers by name: the count of steps, and for each parameter by its place the state."""
        result: dict[str, np.ndarray] = {"steps": np.array(self.steps, np.int64), "lr": np.array(self.lr, np.float64)}
        for name, flat in self.state.items():
            array = flat.numpy()
            for i, (parameter, start) in enumerate(zip(self.parameters, self._starts, strict=True)):
                result[f"{name}.{i}"] = array[start : start + parameter.size].reshape(parameter.shape)
        return result

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. Raises InvalidArgument, and changes nothing, unless it fits."""
        expected_shapes = {"steps": (), "lr": ()}
        for name in self.state:
            expected_shapes |= {f"{name}.{i}": parameter.shape for i, parameter in enumerate(self.parameters)}
        shapes = {name: tuple(np.shape(value)) for name, value in state.items()}
        if shapes != expected_shapes:
            wrong = sorted(
                name for name in {*shapes, *expected_shapes} if shapes.get(name) != expected_shapes.get(name)
            )
            raise InvalidArgument(f"the optimiser's state does not fit: {', '.join(wrong[:5])}")
        for name, flat in self.state.items():
            array = np.zeros(flat.shape, flat.dtype)
            for i, (parameter, start) in enumerate(zip(self.parameters, self._starts, strict=True)):
                array[start : start + parameter.size] = np.asarray(state[f"{name}.{i}"]).reshape(-1)
            flat.write(array)
        self.steps, self.lr = int(state["steps"]), float(state["lr"])


def _where_finite(text: str, written: Sequence[str]) -> str:
    """A step's formula over scaled gradients ``g``, which keeps what was there where ``bad`` is not 0."""
    steps = []
    for step in text.split(";"):
        name, value = (part.strip() for part in step.split("=", 1))
        value = re.sub(r"\bg\b", "(g / scale)", value)
        steps.append(f"{name} = {f'where(bad > 0, {name}, {value})' if name in written else value}")
    return "; ".join(steps)


def _flat(size: int, example: Tensor) -> Tensor:
    """Zeros in memory that is no pool's: it stays as long as the parameters, and parts of it are buffers too."""
    memory = cl.Buffer(example.context, cl.mem_flags.READ_WRITE, size * example.dtype.itemsize)
    return fill(Tensor(memory, (size,), example.dtype, example.queue), 0.0)


def _part(flat: Tensor, start: int, parameter: Parameter) -> Any:
    itemsize = flat.dtype.itemsize
    return flat.base_data.get_sub_region(start * itemsize, max(1, parameter.size) * itemsize)


class SGD(Optimizer):
    """``v = momentum * v + g + weight_decay * p; p -= lr * v``, with ``nesterov`` ``p -= lr * (g + momentum * v)``."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and not momentum:
            raise InvalidArgument("Nesterov's step needs a momentum above 0")
        self.momentum, self.weight_decay, self.nesterov = float(momentum), float(weight_decay), nesterov
        self.state_names = ("momentum",) if momentum else ()
        super().__init__(parameters, lr)

    @property
    def written(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("v", "p") if self.momentum else ("p",)

    def _text(self) -> str:
        if not self.momentum:
            return "p = p - lr * (g + decay * p)"
        ahead = "d + momentum * v" if self.nesterov else "v"
        return f"d = g + decay * p; v = momentum * v + d; p = p - lr * ({ahead})"

    def _update(self, text: str, scaling: dict[str, Tensor]) -> None:
        operands = {"p": self.values, "g": self.gradients, "lr": self.lr, "decay": self.weight_decay, **scaling}
        momentum_operands = {"v": self.state["momentum"], "momentum": self.momentum} if self.momentum else {}
        apply(text, **operands, **momentum_operands)


class Adam(Optimizer):
    """Adam; ``weight_decay`` is added to the gradient, as PyTorch's Adam does, not AdamW."""

    state_names = ("mean", "square")

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.betas, self.epsilon, self.weight_decay = betas, float(epsilon), float(weight_decay)
        super().__init__(parameters, lr)

    written = ("m", "s", "p")

    def _text(self) -> str:
        return (
            "d = g + decay * p; m = a * m + (1 - a) * d; s = b * s + (1 - b) * d * d; "
            "p = p - rate * m / (sqrt(s) * root + epsilon)"
        )

    def _update(self, text: str, scaling: dict[str, Tensor]) -> None:
        mean_decay, square_decay = self.betas
        apply(
            text,
            p=self.values,
            g=self.gradients,
            m=self.state["mean"],
            s=self.state["square"],
            a=float(mean_decay),
            b=float(square_decay),
            decay=self.weight_decay,
            rate=self.lr / (1 - mean_decay**self.steps),
            root=1 / math.sqrt(1 - square_decay**self.steps),
            epsilon=self.epsilon,
            **scaling,
        )


MAX_SCALE = 2.0**24
"""The largest factor by which the loss is scaled."""
MIN_SCALE = 1.0
"""The smallest factor by which the loss is scaled."""
_UPDATE = """
scale = where(bad > 0, max(scale * 0.5, least), where(well + 1 >= interval, min(scale * 2, largest), scale))
well = where(bad > 0, 0, where(well + 1 >= interval, 0, well + 1))
"""


class LossScaler:
    """A factor of the loss, by which gradients are divided: those of float16 are 0 below 6e-8 (Micikevicius et al.
    2018). It halves after a step with an infinite or NaN gradient and doubles after ``interval`` steps without one. It
    lies on the device: nothing waits for the host, and a captured step holds.

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
