"""The operators of the device "opencl": views, copies, convolutions, formulas, and the host for the rest.

What a formula does not say (types that differ, integers) and every operator without a line here runs on the host, by
copies, and is counted as a fallback.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...elementwise.apply import compute
from ...elementwise.filling import fill
from ...elementwise.reductions import combine
from .. import counting
from ..dispatch import engine
from ..dispatch.routing import routed, settings_in_force
from ..eager.opencl_tensors import (
    NAME,
    copy,
    empty_strided,
    on_metadata,
    own_kernel,
    resize,
    seen,
    to_host,
    written,
)
from ..graph.operator_table import UNARY

_aten = torch.ops.aten
# The elementwise formula of each operator, then the formula's operands in the order of the operator's arguments.
FORMULAS = {
    "add.out": ("x + alpha * y", "x", "y", "alpha"),
    "sub.out": ("x - alpha * y", "x", "y", "alpha"),
    "mul.out": ("x * y", "x", "y"),
    "div.out": ("x / y", "x", "y"),
    "maximum.out": ("max(x, y)", "x", "y"),
    "minimum.out": ("min(x, y)", "x", "y"),
    "sigmoid.out": ("sigmoid(x)", "x"),
    "tanh.out": ("tanh(x)", "x"),
    **{f"{name}.out": (text, "x") for name, text in UNARY.items()},
    "addcmul.out": ("x + value * y * z", "x", "y", "z", "value"),
    "addcdiv.out": ("x + value * (y / z)", "x", "y", "z", "value"),
    "threshold_backward.grad_input": ("dy if x > level else 0", "dy", "x", "level"),
    "sigmoid_backward.grad_input": ("dy * y * (1 - y)", "dy", "y"),
    "tanh_backward.grad_input": ("dy * (1 - y * y)", "dy", "y"),
    "lerp.Scalar_out": ("x + weight * (y - x)", "x", "y", "weight"),
}
_UNSAID = {"aten::native_batch_norm": (3, 4)}
"""Indices of arguments that an operator writes although its schema does not say so."""
_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view.dtype", "set_.source_Storage_storage_offset")


def _formula(name: str, text: str, names: Sequence[str]) -> Any:
    operator = _operator(name)
    target = "grad_input" if name.endswith("grad_input") else "out"

    def kernel(*arguments: Any, **options: Any) -> Any:
        out = options[target]
        operand_by_name = dict(zip(names, arguments))
        operand_by_name |= {each: options.get(each, 1) for each in names if each not in operand_by_name}
        for each, value in operand_by_name.items():
            if isinstance(value, torch.Tensor) and value.ndim == 0 and value.device.type == "cpu":
                operand_by_name[each] = value.item()
        values = operand_by_name.values()
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        are_taken = all(isinstance(v, torch.Tensor | int | float) and not isinstance(v, bool) for v in values)
        if not (are_taken and tensors and own_kernel(out, *tensors)):
            return _on_host(operator, *arguments, **options)
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        if out.shape != shape:
            resize(out, shape)
        if out.numel():
            named = {each: seen(v) if isinstance(v, torch.Tensor) else float(v) for each, v in operand_by_name.items()}
            compute(text, named, out=seen(out))
        return out

    return kernel


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _relu(x: torch.Tensor, in_place: bool = False) -> torch.Tensor:
    if not own_kernel(x):
        return _on_host(_aten.relu_.default if in_place else _aten.relu.default, x)
    out = x if in_place else torch.empty_like(x)
    if x.numel():
        compute("max(x, 0)", {"x": seen(x)}, out=seen(out))
    return out


def _fill(x: torch.Tensor, value: Any) -> torch.Tensor:
    if not own_kernel(x):
        written(x, torch.full((), value, dtype=x.dtype, device="cpu"))
    elif x.numel():
        fill(seen(x), float(value))
    return x


def _reduced(kind: str, operator: Any) -> Any:
    def kernel(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
        if not own_kernel(x, out) or not x.numel() or not x.ndim:
            return _on_host(operator, x, dim, keepdim, dtype=dtype, out=out)
        axes = tuple(range(x.ndim)) if not dim else tuple(axis % x.ndim for axis in dim)
        target = seen(out)
        _, result = combine(kind, "x", {"x": seen(x)}, axes, keepdim, target.dtype)
        compute("x", {"x": result}, out=target)
        return out

    return kernel


# Convolutions, by our engines or on the host.


def _convolution(*arguments: Any) -> torch.Tensor:
    host_kernel = functools.partial(_on_host, _aten.convolution.default, *arguments)
    return routed("convolution", engine.forward, host_kernel, arguments, settings_in_force())


def _convolution_backward(grad: Any, x: Any, w: Any, *geometry_arguments: Any) -> Any:
    arguments = (grad, x, w, [grad.shape[1]], *geometry_arguments)
    host_kernel = functools.partial(_on_host, _aten.convolution_backward.default, *arguments)
    return routed("convolution_backward", engine.backward, host_kernel, arguments, settings_in_force())


# All other operators: they run on the host.


def _on_host(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Run an operator on copies in host memory; its results, and the arguments that it wrote, are copied to the
    device."""
    if any(r.alias_info is not None and not r.alias_info.is_write for r in operator._schema.returns):
        return on_metadata(operator, *arguments, **options)  # the result is a view, so no memory is copied
    counting.fallback(str(operator))
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def down(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == NAME:
            for device_tensor, host_tensor in pairs:
                if device_tensor is value:
                    return host_tensor
            pairs.append((value, to_host(value)))
            return pairs[-1][1]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value

    lowered, named = pytree.tree_map(down, arguments), pytree.tree_map(down, options)
    results = operator(*lowered, **named)
    for device_argument in _mutated(operator, arguments, options):
        host_copy = down(device_argument)
        if device_argument.shape != host_copy.shape:
            resize(device_argument, host_copy.shape)
        written(device_argument, host_copy)

    def lift(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            for device_tensor, host_tensor in pairs:
                if host_tensor is value:
                    return device_tensor
            device_copy = empty_strided(value.shape, value.contiguous().stride(), value.dtype)
            written(device_copy, value)
            return device_copy
        return value

    return pytree.tree_map(lift, results)


def _mutated(operator: Any, arguments: Sequence[Any], options: dict[str, Any]) -> list[torch.Tensor]:
    written_tensors = []
    for index, argument in enumerate(operator._schema.arguments):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if not is_written and index not in _UNSAID.get(operator._schema.name, ()):
            continue
        value = arguments[index] if index < len(arguments) else options.get(argument.name)
        written_tensors += [each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]
    return [each for each in written_tensors if each.device.type == NAME]


# Registration of all kernels with PyTorch's dispatcher.


def _empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return empty_strided(size, stride, dtype or torch.get_default_dtype())


def _empty(size: Sequence[int], *, memory_format: Any = None, **options: Any) -> torch.Tensor:
    form = memory_format or torch.contiguous_format
    return _empty_strided(size, torch.empty(tuple(size), device="meta", memory_format=form).stride(), **options)


def install() -> list[Any]:
    """Register all kernels; they stay registered while the returned objects live."""
    library, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    kernels: dict[str, Any] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": lambda x, size, *, memory_format=None: resize(x, size),
        "_copy_from": lambda source, target, non_blocking=False: copy(source, target),
        "_copy_from_and_resize": lambda source, target: copy(source, resize(target, source.shape)),
        "_local_scalar_dense": lambda x: to_host(x).item(),
        "relu": _relu,
        "relu_": lambda x: _relu(x, in_place=True),
        "fill_.Scalar": _fill,
        "zero_": lambda x: _fill(x, 0),
        "sum.IntList_out": _reduced("sum", _aten.sum.IntList_out),
        "mean.out": _reduced("mean", _aten.mean.out),
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
    }
    kernels |= {name: functools.partial(on_metadata, _operator(name)) for name in _VIEWS}
    kernels |= {name: _formula(name, text, names) for name, (text, *names) in FORMULAS.items()}
    for name, kernel in kernels.items():
        library.impl(name, kernel, "PrivateUse1")
    rest.fallback(_on_host, "PrivateUse1")
    return [library, rest]
