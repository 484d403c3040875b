"""Module: a part of a net that knows its parameters and parts by name, and keeps or takes up their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..elementwise.tensor import Parameter, Tensor


class Module:
    """A part of a net. Its attributes that are Parameters are trained, other tensors among them are kept with them,
    and modules (also in lists) are its parts; names are the attributes' names, in the order of assignment.

    A subclass assigns in ``__init__`` and computes in ``forward``.
    """

    training = True
    """Whether batch norms and dropouts train; set by ``train`` and ``eval``."""

    def forward(self, *inputs: Any) -> Any:
        """Compute the module's result for its inputs; calling the module calls this method."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward(*inputs, **options)

    # --- submodules, parameters and buffers --------------------------------------------------------------------------

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules among the attributes, also those in lists, with their names (``"blocks.3"``)."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if isinstance(part, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all parts of parts; names joined by dots, this one's is ``prefix``."""
        yield prefix, self
        for name, part in self.children():
            yield from part.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The module's parameters, which training changes, with their names; a parameter that is used twice has one
        name."""
        yielded: set[int] = set()
        for name, tensor, _ in self._places():
            if isinstance(tensor, Parameter) and id(tensor) not in yielded:
                yielded.add(id(tensor))
                yield name, tensor

    def parameters(self) -> Iterator[Parameter]:
        """The module's parameters, which training changes."""
        return (tensor for _, tensor in self.named_parameters())

    # --- training and evaluation modes -------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Module:
        """Set ``training`` here and in all parts. Returns the module."""
        for _, part in self.named_modules():
            part.training = mode
        return self

    def eval(self) -> Module:
        """Leave training: batch norms use their running statistics, dropout does nothing."""
        return self.train(False)

    # --- state dictionaries: values by name --------------------------------------------------------------------------

    def torch_axes(self, name: str) -> tuple[int, ...] | None:
        """The order of this module's tensor ``name`` in which its axes are PyTorch's; None when it is that already."""
        return None

    def state_dict(self) -> dict[str, Tensor]:
        """Views of all values under PyTorch's names and in its shapes, whatever the layout here."""
        return {name: tensor if axes is None else tensor.transpose(axes) for name, tensor, axes in self._places()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up values (NumPy arrays or tensors) under PyTorch's names and in its shapes.

        PyTorch's ``num_batches_tracked`` is passed over, and axes of size 1 do not count.
        Raises InvalidArgument, and changes nothing, unless names and shapes fit.
        """
        places = {name: (tensor, axes) for name, tensor, axes in self._places()}
        values = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
        if places.keys() != values.keys():
            missing, unknown = sorted(places.keys() - values.keys()), sorted(values.keys() - places.keys())
            raise InvalidArgument(f"values do not match: missing {missing or 'none'}, unknown {unknown or 'none'}")
        arrays = {}
        for name, (tensor, axes) in places.items():
            value = values[name]
            array = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
            expected_shape = tensor.shape if axes is None else tuple(tensor.shape[axis] for axis in axes)
            if _trimmed(array.shape) != _trimmed(expected_shape):
                raise InvalidArgument(f"{name} has shape {expected_shape}, got {array.shape}")
            array = array.reshape(expected_shape)
            arrays[name] = array if axes is None else array.transpose(np.argsort(axes))
        for name, (tensor, _) in places.items():
            tensor.write(arrays[name])

    def _places(self) -> Iterator[tuple[str, Tensor, tuple[int, ...] | None]]:
        """Names, tensors, and the order in which their axes are PyTorch's."""
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and not name.startswith("_"):
                    yield f"{prefix}.{name}" if prefix else name, value, module.torch_axes(name)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


class Sequential(Module):
    """Each layer (a module or any function of a tensor) applied to the result of the one before; parts are numbered."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = list(layers)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The layers that are modules, named by their places as in PyTorch."""
        yield from ((str(i), layer) for i, layer in enumerate(self.layers) if isinstance(layer, Module))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, place: int) -> Callable[[Tensor], Tensor]:
        return self.layers[place]

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's result."""
        for layer in self.layers:
            x = layer(x)
        return x
