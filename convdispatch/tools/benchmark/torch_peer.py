"""PyTorch: oneDNN on a CPU, cuDNN on a GPU, in both memory formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...api.device import DeviceInfo
from ...api.problem import ConvProblem
from .peers import Unable, Variant, unable


class Peer:
    """torch with as many threads as the device has units, or on CUDA with cuDNN's own search (benchmark)."""

    name = "torch"

    def __init__(self, device: DeviceInfo) -> None:
        if device.type == "cpu":
            torch.set_num_threads(device.compute_units)
            self.place, backend = torch.device("cpu"), "oneDNN" if torch.backends.mkldnn.is_available() else "native"
            self.settings: Mapping[str, object] = {"threads": device.compute_units}
        elif device.vendor == "nvidia" and torch.cuda.is_available():
            self.place, backend = torch.device("cuda"), f"cuDNN {torch.backends.cudnn.version()}"
            torch.backends.cudnn.benchmark = True
            self.settings = {"device": torch.cuda.get_device_name(), "cudnn.benchmark": True, "tf32": "with math=tf32"}
        else:
            raise Unable(f"this torch has no device for {device}")
        self.settings = {"version": torch.__version__, "backend": backend, **self.settings}

    def variants(self, problem: ConvProblem, host: Mapping[str, np.ndarray], copies: int) -> Sequence[Variant]:
        """channels first and, in two dimensions or three, channels last."""
        reason = unable(problem)
        if reason:
            raise Unable(reason)
        formats = {"nchw": torch.contiguous_format}
        if problem.ndim > 1:
            formats["nhwc"] = torch.channels_last if problem.ndim == 2 else torch.channels_last_3d
        return [
            Variant(name, *_work(problem, _tensors(problem, host, kind, self.place, copies), self.place))
            for name, kind in formats.items()
        ]


def _tensors(
    problem: ConvProblem, host: Mapping[str, np.ndarray], kind: torch.memory_format, place: torch.device, copies: int
) -> list[dict[str, torch.Tensor]]:
    """``copies`` sets of x, w, y and bias; the values of the tensor that is written do not matter."""
    plain = problem.replace(layout="nchw")
    tensors = {}
    for name in ("x", "w", "y", "bias"):
        if name in host:
            tensor = _tensor(host[name], problem.dtype)
            if name != "bias" and problem.layout == "nhwc":
                tensor = tensor.movedim(-1, 1)
        elif name == problem.written:
            tensor = torch.zeros(getattr(plain, name + "_shape"), dtype=getattr(torch, problem.dtype))
        else:
            continue
        tensors[name] = tensor.to(place) if name == "bias" else tensor.to(place).contiguous(memory_format=kind)
    clone = torch.preserve_format
    return [tensors, *({n: t.clone(memory_format=clone) for n, t in tensors.items()} for _ in range(copies - 1))]


def _tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":  # ``torch.from_numpy`` does not accept the bfloat16 arrays of ml_dtypes.
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _work(problem: ConvProblem, sets: list[dict[str, torch.Tensor]], torch_device: torch.device) -> tuple[Any, Any]:
    near = [getattr(problem, "p" + axis) for axis in problem.axes]
    pads_after = [getattr(problem, f"p{axis}_r") for axis in problem.axes]
    if near != pads_after and problem.direction != "fwd":
        raise Unable("torch has no gradient of a padding of one side")
    stride, spread = ([getattr(problem, letter + axis) for axis in problem.axes] for letter in "sd")
    output_mask = [problem.direction == "bwd_data", problem.direction == "bwd_weights", False]
    pad_sizes = [size for pair in zip(reversed(near), reversed(pads_after)) for size in pair]
    no_padding = [0] * problem.ndim
    tf32 = problem.math in ("tf32", "fast")
    set_index = -1

    def computed(t: dict[str, torch.Tensor]) -> torch.Tensor:
        if problem.direction != "fwd":
            grads = torch.ops.aten.convolution_backward(
                t["y"], t["x"], t["w"], None, stride, near, spread, False, no_padding, problem.g, output_mask
            )
            return grads[output_mask.index(True)]
        x, pad = (t["x"], near) if near == pads_after else (torch.nn.functional.pad(t["x"], pad_sizes), no_padding)
        y = torch.convolution(x, t["w"], t.get("bias"), stride, pad, spread, False, no_padding, problem.g)
        return torch.relu_(y) if problem.activation else y

    def run(count: int) -> None:
        nonlocal set_index
        with torch.no_grad():
            _allow_tf32(torch_device, tf32)
            for _ in range(count):
                set_index = (set_index + 1) % len(sets)
                computed(sets[set_index])
            if torch_device.type == "cuda":
                torch.cuda.synchronize()

    def result() -> np.ndarray:
        with torch.no_grad():
            _allow_tf32(torch_device, tf32)
            output = computed(sets[0]).cpu()
        output = output.movedim(1, -1) if problem.layout == "nhwc" else output
        return output.contiguous().to(torch.float64).numpy()

    return run, result


def _allow_tf32(torch_device: torch.device, allowed: bool) -> None:
    # The flag is set for CUDA only, because torch's test helpers forbid setting it in their process.
    if torch_device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = allowed
