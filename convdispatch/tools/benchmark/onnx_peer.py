"""onnxruntime: one Conv node, forward, channels first; weights are the graph's own where they are constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ...api.device import DeviceInfo
from ...api.problem import ConvProblem
from .peers import Unable, Variant, unable

_TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}


class Peer:
    """onnxruntime with one session per problem, on the CPU with a thread per compute unit or on CUDA."""

    name = "onnxruntime"

    def __init__(self, device: DeviceInfo) -> None:
        gpu = device.vendor == "nvidia" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        if device.type != "cpu" and not gpu:
            raise Unable(f"this onnxruntime has no provider for {device}")
        self.provider = "CUDAExecutionProvider" if gpu else "CPUExecutionProvider"
        self.threads = device.compute_units
        self.settings: Mapping[str, object] = {
            "version": onnxruntime.__version__,
            "provider": self.provider,
            "threads": self.threads,
        }

    def variants(self, problem: ConvProblem, host: Mapping[str, np.ndarray], copies: int) -> Sequence[Variant]:
        """Return the only variant: onnxruntime takes channels first, and transposes within the run if it prefers
        another layout."""
        reason = unable(problem)
        if reason or problem.direction != "fwd" or problem.dtype not in _TYPES:
            raise Unable(reason or f"forward alone, in {', '.join(_TYPES)}")
        feeds, model = _model(problem, host)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 3
        try:
            session = onnxruntime.InferenceSession(model, options, providers=[self.provider])
        except Exception as error:  # onnxruntime raises exception types that it does not export.
            raise Unable(str(error).splitlines()[0]) from error
        sets = [{name: array.copy() for name, array in feeds.items()} for _ in range(copies)]
        turn = -1

        def run(count: int) -> None:
            nonlocal turn
            for _ in range(count):
                turn = (turn + 1) % len(sets)
                session.run(None, sets[turn])

        def result() -> np.ndarray:
            (output,) = session.run(None, sets[0])
            return np.moveaxis(output, 1, -1) if problem.layout == "nhwc" else output

        return [Variant("nchw", run, result)]


def _model(problem: ConvProblem, host: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], bytes]:
    """Return the input arrays, channels first, and the ONNX model that computes the problem."""
    arrays = {name: host[name] for name in ("x", "w", "bias") if name in host}
    if problem.layout == "nhwc":
        arrays |= {name: np.ascontiguousarray(np.moveaxis(arrays[name], -1, 1)) for name in ("x", "w")}
    fixed = {"w", "bias"} & set(arrays) if problem.constant_weights else set()
    pads = [getattr(problem, "p" + axis + side) for side in ("", "_r") for axis in problem.axes]
    strides, dilations = ([getattr(problem, letter + axis) for axis in problem.axes] for letter in "sd")
    conv_output = "z" if problem.activation else "y"
    geometry = {"strides": strides, "dilations": dilations, "pads": pads, "group": problem.g}
    nodes = [helper.make_node("Conv", list(arrays), [conv_output], **geometry)]
    nodes += [helper.make_node("Relu", ["z"], ["y"])] if problem.activation else []
    kind = _TYPES[problem.dtype]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info(name, kind, a.shape) for name, a in arrays.items() if name not in fixed],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(arrays[name], name) for name in sorted(fixed)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return {name: a for name, a in arrays.items() if name not in fixed}, model.SerializeToString()
