"""ONNX's own backend interface: ``Backend.prepare(model, device).run(inputs)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..api.errors import NoDevice
from .call import Unsupported
from .model import OnnxNet, load
from .reading import onnx_package

onnx_package()
from onnx.backend.base import Backend as _Backend  # noqa: E402 (onnx_package() first checks that onnx is installed)
from onnx.backend.base import BackendRep as _BackendRep  # noqa: E402
from onnx.backend.base import namedtupledict  # noqa: E402

_DEVICES = {"CPU": "cpu", "CUDA": "nvidia"}


class BackendRep(_BackendRep):  # type: ignore[misc]
    """A model made ready."""

    def __init__(self, net: OnnxNet) -> None:
        self.net = net

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The outputs, a tuple with names, for arrays in order, by name, or one alone."""
        if isinstance(inputs, Mapping):
            results = tuple(self.net(inputs).values())
        else:
            many = isinstance(inputs, Sequence) and not isinstance(inputs, np.ndarray | str)
            answer = self.net(*(inputs if many else [inputs]))
            results = answer if isinstance(answer, tuple) else (answer,)
        names = [port.name for port in self.net.outputs]
        return namedtupledict("Outputs", names)(*results)  # type: ignore[no-any-return]


class Backend(_Backend):  # type: ignore[misc]
    """Any OpenCL device that is a CPU (``"CPU"``), or NVIDIA's (``"CUDA"``)."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **_: Any) -> bool:
        """Whether every operator of the model is here."""
        try:
            load(model, device=_device(device))
        except (Unsupported, NoDevice):
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """The model made ready; ``math`` and ``dtype`` as ``load`` takes them."""
        options = {name: kwargs[name] for name in ("math", "dtype") if name in kwargs}
        return BackendRep(load(model, device=_device(device), **options))

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """One node alone, with arrays for its inputs."""
        onnx = onnx_package()
        values = [inputs[name] for name in node.input] if isinstance(inputs, Mapping) else list(inputs)
        names = [name for name in node.input if name]
        arrays = [np.asarray(value) for value in values]
        declared = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", declared, outputs)
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
        return cls.prepare(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is such a device on this machine."""
        from .. import runtime

        try:
            runtime.find_device(_device(device))
        except (NoDevice, KeyError):
            return False
        return True


def _device(name: str) -> str:
    return _DEVICES[name.partition(":")[0]]
