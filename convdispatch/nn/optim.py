"""SGD with momentum and weight decay, and Adam (Kingma and Ba 2015): one kernel a step.

An optimiser lays all parameters of one device into one buffer, and their gradients into another, so that a step is one
launch however many parameters there are. Each Parameter stays the object it was; its memory moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..elementwise import apply, fill, full
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

    def step(self) -> None:
        """Change the parameters by what their gradients say."""
        self.steps += 1
        self._update()

    def _update(self) -> None:
        """Compute a step's formula, of the parameters p, the gradients g and the state."""
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

    def _update(self) -> None:
        operands = {"p": self.values, "g": self.gradients, "lr": self.lr, "decay": self.weight_decay}
        if not self.momentum:
            apply("p = p - lr * (g + decay * p)", **operands)
            return
        ahead = "d + momentum * v" if self.nesterov else "v"
        text = f"d = g + decay * p; v = momentum * v + d; p = p - lr * ({ahead})"
        apply(text, **operands, v=self.state["momentum"], momentum=self.momentum)


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

    def _update(self) -> None:
        mean_decay, square_decay = self.betas
        apply(
            "d = g + decay * p; m = a * m + (1 - a) * d; s = b * s + (1 - b) * d * d; "
            "p = p - rate * m / (sqrt(s) * root + epsilon)",
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
        )
