"""SGD with momentum and weight decay, and Adam (Kingma and Ba 2015): one kernel a parameter and step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..elementwise import apply, fill, full
from ..elementwise.tensor import Parameter, Tensor


class Optimizer:
    """The base class of optimisers: parameters, and for each of them tensors of the optimiser's own by name."""

    state_names: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise InvalidArgument("an optimiser needs parameters, got none")
        for parameter in self.parameters:
            if not isinstance(parameter, Parameter):
                raise InvalidArgument(f"an optimiser changes Parameters, got {type(parameter).__name__}")
        self.lr, self.steps = float(lr), 0
        self.state = {
            f"{name}.{i}": full(each.shape, 0.0, each.dtype, each.queue)
            for name in self.state_names
            for i, each in enumerate(self.parameters)
        }

    def zero_grad(self) -> None:
        """Set all gradients to zero; needed only before ``backward(accumulate=True)``."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                fill(parameter.grad, 0.0)

    def step(self) -> None:
        """Change the parameters by what their gradients say; those without a gradient stay."""
        self.steps += 1
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                state = {name: self.state[f"{name}.{i}"] for name in self.state_names}
                self._update(parameter, parameter.grad, state)

    def _update(self, p: Parameter, g: Tensor, state: dict[str, Tensor]) -> None:
        """Compute a step's formula for one parameter."""
        raise NotImplementedError

    # --- the optimizer's state as arrays, for checkpoints ------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """The optimiser's own numbers by name: the count of steps, and for each parameter by its place the state."""
        numbers = {"steps": np.array(self.steps, np.int64), "lr": np.array(self.lr, np.float64)}
        return numbers | {name: tensor.numpy() for name, tensor in self.state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. Raises InvalidArgument, and changes nothing, unless it fits."""
        expected = {"steps": (), "lr": ()} | {name: tensor.shape for name, tensor in self.state.items()}
        shapes = {name: tuple(np.shape(value)) for name, value in state.items()}
        if shapes != expected:
            wrong = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
            raise InvalidArgument(f"the optimiser's state does not fit: {', '.join(wrong[:5])}")
        for name, tensor in self.state.items():
            tensor.write(state[name])
        self.steps, self.lr = int(state["steps"]), float(state["lr"])


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

    def _update(self, p: Parameter, g: Tensor, state: dict[str, Tensor]) -> None:
        operands = {"p": p, "g": g, "lr": self.lr, "decay": self.weight_decay}
        if not self.momentum:
            apply("p = p - lr * (g + decay * p)", **operands)
            return
        ahead = "d + momentum * v" if self.nesterov else "v"
        text = f"d = g + decay * p; v = momentum * v + d; p = p - lr * ({ahead})"
        apply(text, **operands, v=state["momentum"], momentum=self.momentum)


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

    def _update(self, p: Parameter, g: Tensor, state: dict[str, Tensor]) -> None:
        mean_decay, square_decay = self.betas
        apply(
            "d = g + decay * p; m = a * m + (1 - a) * d; s = b * s + (1 - b) * d * d; "
            "p = p - rate * m / (sqrt(s) * root + epsilon)",
            p=p,
            g=g,
            m=state["mean"],
            s=state["square"],
            a=float(mean_decay),
            b=float(square_decay),
            decay=self.weight_decay,
            rate=self.lr / (1 - mean_decay**self.steps),
            root=1 / math.sqrt(1 - square_decay**self.steps),
            epsilon=self.epsilon,
        )
