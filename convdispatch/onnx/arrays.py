"""Converts a caller's arrays to the inputs of an inference net, and its results to arrays of the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..calls.arrays.accepted import refuse_mask
from ..elementwise.tensor import Tensor


class Caller:
    """The kind of arrays that one call brings."""

    def __init__(self, given: Sequence[Any], queue: Any) -> None:
        self.queue = queue
        self._first = given[0] if given else np.empty(0)

    def taken(self, value: Any, port: Any) -> Any:
        """A NumPy array or a Tensor of the type that the port's numbers are computed in.

        Raises InvalidArgument for another type than the file declares, as onnxruntime does, or no array. Python's own
        numbers and lists of them have no type: whole ones become any, others floating-point ones.
        """
        array = self._brought(value, port.name)
        if array.dtype == port.dtype:
            return array
        plain = isinstance(value, list | tuple | int | float) and array.dtype.kind in "biuf"
        if plain and port.dtype.kind in "biu":
            plain = array.dtype.kind != "f" and bool((array.astype(port.dtype) == array).all())
        if array.dtype != port.declared and not plain:
            raise InvalidArgument(f"the input {port.name!r} takes {port.declared.name}, got {array.dtype.name}")
        return array.astype(port.dtype)

    def _brought(self, value: Any, name: str) -> Any:
        refuse_mask(f"the input {name!r}", value)
        if isinstance(value, np.ndarray | np.generic | list | tuple | int | float | bool):
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise InvalidArgument(
                    f"the input {name!r} must be an array, got a list that is none: {error}"
                ) from None
            return array.astype(array.dtype.newbyteorder("="), copy=False)
        if isinstance(value, Tensor):
            return value
        if hasattr(value, "base_data"):  # Only pyopencl's arrays have the attribute ``base_data``.
            return Tensor(value.base_data, tuple(value.shape), value.dtype, value.queue, value.strides, value.offset)
        if is_torch(value) and value.device.type == "cpu":
            return torch_to_numpy(value)
        if hasattr(value, "__dlpack__"):
            return Tensor.from_dlpack(value, self.queue)
        if hasattr(value, "__array__"):
            return np.asarray(value)
        raise InvalidArgument(f"the input {name!r} must be an array, got {type(value).__name__}")

    def given(self, result: Any) -> Any:
        """A result that nobody else holds as the caller's first array is."""
        example = self._first
        if isinstance(example, Tensor):
            return result if isinstance(result, Tensor) else Tensor.from_numpy(result, self.queue)
        if hasattr(example, "base_data"):
            import pyopencl.array as cl_array

            t = result if isinstance(result, Tensor) else Tensor.from_numpy(result, self.queue)
            return cl_array.Array(t.queue, t.shape, t.dtype, data=t.base_data, strides=t.strides, offset=t.offset)
        if is_torch(example):
            host = result.numpy() if isinstance(result, Tensor) and example.device.type == "cpu" else result
            return _torch_of(host, example)
        if hasattr(example, "__dlpack__") and not isinstance(example, np.ndarray | np.generic):
            t = result if isinstance(result, Tensor) else Tensor.from_numpy(result, self.queue)
            package = sys.modules[type(example).__module__.partition(".")[0]]
            reader = getattr(package, "from_dlpack", None) or package.dlpack.from_dlpack
            return reader(t)
        return result.numpy() if isinstance(result, Tensor) else result


def is_torch(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch, which is not imported to tell."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def torch_to_numpy(value: Any) -> np.ndarray:
    """NumPy's view of a tensor of PyTorch in host memory; bfloat16 as ml_dtypes has it."""
    torch, value = sys.modules["torch"], value.detach()
    if value.dtype == torch.bfloat16:
        value = value if value.is_contiguous() else value.contiguous()
        return value.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))  # type: ignore[no-any-return]
    return value.numpy()  # type: ignore[no-any-return]


def _torch_of(result: Any, example: Any) -> Any:
    torch = sys.modules["torch"]
    if isinstance(result, Tensor):
        return torch.from_dlpack(result)
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(result).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result).to(example.device)
