"""onnxruntime's memory: ``OrtValue``, an array of any library, and ``IOBinding``, which names one for each input and
output, so that nothing is copied and results lie where the caller wants them."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..device.places.stream import KINDS, dlpack_kind
from ..elementwise.tensor import Tensor
from .arrays import is_torch, torch_to_numpy
from .model import OnnxNet
from .reading import dtype_of

_NAMES = {"float32": "float", "float64": "double"}


class OrtValue:
    """An array as onnxruntime speaks of it. ``array`` is the array itself: NumPy's, torch's, or any with DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0, *_: Any) -> OrtValue:
        """Over NumPy's memory on the CPU; a copy on another device."""
        if device_type == "cpu":
            return OrtValue(np.ascontiguousarray(numpy_obj))
        torch = _torch(f"memory on {device_type}")
        return OrtValue(torch.from_numpy(np.ascontiguousarray(numpy_obj)).to(f"{device_type}:{device_id}"))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, *_: Any
    ) -> OrtValue:
        """New memory, values undefined."""
        host = np.empty(tuple(shape), _dtype(element_type))
        return OrtValue.ortvalue_from_numpy(host, device_type, device_id)

    @staticmethod
    def from_dlpack(data: Any, /) -> OrtValue:
        """Over an array's memory."""
        if not hasattr(data, "__dlpack__"):
            raise InvalidArgument(f"from_dlpack takes an array with __dlpack__, got {type(data).__name__}")
        return OrtValue(data)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def numpy(self) -> np.ndarray:
        """The values on the host; over the same memory where it is the host's."""
        array = self.array
        if isinstance(array, np.ndarray):
            return array
        if isinstance(array, Tensor):
            return array.numpy()
        if is_torch(array):
            return torch_to_numpy(array.detach().cpu())
        return np.from_dlpack(array) if self.device_name() == "cpu" else np.asarray(array.get())

    def shape(self) -> list[int]:
        """Sizes of its axes."""
        return list(self.array.shape)

    def data_type(self) -> str:
        """``"tensor(float)"``."""
        name = str(self.array.dtype).removeprefix("torch.")
        return f"tensor({_NAMES.get(name, name)})"

    def element_type(self) -> int:
        """ONNX's number of the type."""
        import onnx

        name = str(self.array.dtype).removeprefix("torch.")
        return int(onnx.helper.np_dtype_to_tensor_dtype(_dtype(name)))

    def device_name(self) -> str:
        """``"cpu"``, or the kind of the device's streams."""
        if isinstance(self.array, np.ndarray):
            return "cpu"
        if is_torch(self.array):
            return str(self.array.device.type)
        kind = dlpack_kind(self.array.__dlpack_device__()[0])
        return "cpu" if kind is None else kind.kind

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        if isinstance(self.array, np.ndarray):
            return int(self.array.ctypes.data)
        if is_torch(self.array):
            return int(self.array.data_ptr())
        if self.device_name() == "cpu":
            return int(np.from_dlpack(self.array).ctypes.data)
        return int(self.array.__cuda_array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return int(math.prod(self.shape()) * np.dtype(_dtype(str(self.array.dtype).removeprefix("torch."))).itemsize)

    def update_inplace(self, data: np.ndarray) -> None:
        """Write NumPy's values into the memory."""
        if is_torch(self.array):
            self.array.copy_(sys.modules["torch"].from_numpy(np.ascontiguousarray(data)))
        else:
            np.copyto(self.numpy(), data)

    def has_value(self) -> bool:
        """Always: an optional value without one is not here."""
        return True

    def is_tensor(self) -> bool:
        """Always."""
        return True


class IOBinding:
    """The arrays that are bound to the inputs and outputs of a session.

    An input is bound to an array, an OrtValue or an address; an output to memory of the caller's, which is written, or
    to a device, where the session makes it. ``session.run_with_iobinding(binding)`` runs, ``get_outputs`` tells.
    Results are there when it returns on the CPU; on CUDA they are in the order of the current stream.
    """

    def __init__(self, session: Any) -> None:
        self._net: OnnxNet = session.net
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, tuple[str, OrtValue | None]] = {}
        self._results: list[OrtValue] = []

    # --- binding inputs ----------------------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """An input in host memory: a NumPy array, a torch tensor, anything with DLPack."""
        self.bind_ortvalue_input(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """An input at an address, without gaps; the caller keeps the memory."""
        self.bind_ortvalue_input(name, _at(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """An input that is an OrtValue, or any array."""
        value = ortvalue.array if isinstance(ortvalue, OrtValue) else ortvalue
        self._inputs[self._known(name, self._net.inputs + self._net.optional, "input")] = value

    def clear_binding_inputs(self) -> None:
        """Bind no input."""
        self._inputs.clear()

    # --- binding outputs ---------------------------------------------------------------------------------------------

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """An output at an address, or, without one, in new memory on a device."""
        output_value = None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise InvalidArgument(f"the output {name!r} at an address needs element_type and shape")
            output_value = OrtValue(_at(device_type, device_id, element_type, shape, buffer_ptr))
        self._outputs[self._known(name, self._net.outputs, "output")] = (device_type, output_value)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """An output written into an OrtValue, or any array of the result's shape and type."""
        value = ortvalue if isinstance(ortvalue, OrtValue) else OrtValue(ortvalue)
        self._outputs[self._known(name, self._net.outputs, "output")] = (value.device_name(), value)

    def clear_binding_outputs(self) -> None:
        """Bind no output."""
        self._outputs.clear()
        self._results = []

    def get_outputs(self) -> list[OrtValue]:
        """The results of the last run, in the order in which outputs were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """The results on the host."""
        return [value.numpy() for value in self._results]

    def synchronize_inputs(self) -> None:
        """Wait until what the caller enqueued for the inputs is done."""
        _synchronise(self._inputs.values())

    def synchronize_outputs(self) -> None:
        """Wait until results are there."""
        _synchronise(value.array for value in self._results)

    # --- running the model -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """See ``InferenceSession.run_with_iobinding``."""
        if not self._outputs:
            raise InvalidArgument("no output is bound: bind_output(name) for each that is wanted")
        hosts = {
            name: _host_view(output_value.array)
            for name, (_, output_value) in self._outputs.items()
            if output_value is not None and output_value.device_name() == "cpu" and _is_host(output_value.array)
        }
        results = self._net.run(self._inputs, hosts)
        self._results = [self._placed(results[name], *bound) for name, bound in self._outputs.items()]

    @staticmethod
    def _placed(result: Any, device: str, output_value: OrtValue | None) -> OrtValue:
        if output_value is not None:
            if not (output_value.device_name() == "cpu" and _is_host(output_value.array)):
                output_value.update_inplace(OrtValue(result).numpy())
            return output_value
        value = OrtValue(result)
        return value if device != "cpu" or value.device_name() == "cpu" else OrtValue(value.numpy())

    @staticmethod
    def _known(name: str, ports: Any, kind: str) -> str:
        names = [port.name for port in ports]
        if name not in names:
            raise InvalidArgument(f"there is no {kind} {name!r}; there are {', '.join(names)}")
        return name


def _at(device: str, number: int, element_type: Any, shape: Sequence[int], address: int) -> Any:
    """An array over memory at an address."""
    dtype, sizes = _dtype(element_type), tuple(int(size) for size in shape)
    if device == "cpu":
        count = math.prod(sizes) * dtype.itemsize
        return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(sizes)
    torch = _torch("an address on a CUDA device")

    class Memory:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": sizes, "typestr": dtype.str, "data": (int(address), False), "version": 3, "strides": None,
        }  # fmt: skip

    return torch.as_tensor(Memory(), device=f"cuda:{number}")


def _dtype(kind: Any) -> np.dtype:
    """NumPy's dtype of a type as onnxruntime takes it: NumPy's, ONNX's number, a name."""
    if isinstance(kind, int) and not isinstance(kind, bool):
        return dtype_of(kind)
    return numpy_dtype(kind)


def _is_host(array: Any) -> bool:
    """Whether NumPy can see and write the memory."""
    return isinstance(array, np.ndarray) or (is_torch(array) and array.device.type == "cpu")


def _host_view(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else torch_to_numpy(array)


def _torch(purpose: str) -> Any:
    try:
        import torch
    except ImportError:
        raise InvalidArgument(f"{purpose} needs PyTorch: pip install torch") from None
    return torch


def _synchronise(arrays: Any) -> None:
    for array in arrays:
        if is_torch(array) and array.device.type in KINDS:
            getattr(sys.modules["torch"], array.device.type).current_stream(array.device).synchronize()
        elif isinstance(array, Tensor):
            array.queue.finish()
