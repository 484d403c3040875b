"""Lowers a convolution of jax to a foreign call of this package, or to XLA's operator, whose reason is counted.

jax's rules for gradients, batches and shapes are unchanged: they produce convolutions, each of which is lowered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import ffi, lax
from jax.interpreters import mlir

from ..api.errors import ConvDispatchError
from ..api.policy import PROMISES, promising
from ..calls.framework.fallback import Fallback
from .calls import TARGET, call_for, count, described, register
from .geometry import Plan, plan_of

_HALF_DTYPES = ("float16", "bfloat16")
_MATHS = {"DEFAULT": "tf32", "HIGH": "float32", "HIGHEST": "ieee"}
"""The ``math`` option for each of jax's precisions of float32 data; on CPUs jax has no TF32."""


def planned(platform: str, lhs: Any, rhs: Any, out: Any, math: str | None, params: dict[str, Any]) -> Plan:
    """The plan for a convolution of abstract arrays. Raises Fallback with the reason."""
    if lhs.dtype != rhs.dtype:
        raise Fallback(f"operands of one type only, got {lhs.dtype} and {rhs.dtype}")
    dtype = str(lhs.dtype)
    # On CPUs the sums of 16-bit floats are float32 in any case.
    if platform == "cpu" and dtype in _HALF_DTYPES and str(out.dtype) == "float32":
        dtype, params = "float32", params | {"preferred_element_type": None}
    return plan_of(lhs.shape, rhs.shape, out.shape, dtype, _math(platform, dtype, math, params), **params)


def _math(platform: str, dtype: str, math: str | None, params: dict[str, Any]) -> str:
    """The ``math`` option for float32 data that corresponds to jax's precision."""
    if dtype != "float32" and math != "reproducible":
        return "float32"
    if math is not None:
        return math
    precision = params["precision"] or (lax.Precision.DEFAULT,)
    names = [getattr(item, "name", "") for item in precision] if isinstance(precision, tuple) else [""]
    if not all(name in _MATHS for name in names):
        raise Fallback(f"precision DEFAULT, HIGH or HIGHEST only, got {precision}")
    found = next(name for name in reversed(_MATHS) if name in names)
    return "float32" if platform == "cpu" and found == "DEFAULT" else _MATHS[found]


def lower(platform: str, theirs: Any, settings: Mapping[str, Any], ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The lowering rule of a convolution; ``theirs`` is jax's own rule, ``settings`` are ``enable``'s arguments."""
    try:
        devices = getattr(ctx.module_context.axis_context, "num_devices", 1) or 1
        if devices > 1:
            raise Fallback(f"programs for one device only, got one for {devices}")
        plan = planned(platform, *ctx.avals_in, *ctx.avals_out, settings.get("math"), params)
        register()
        with promising({name: value for name, value in settings.items() if name in PROMISES}):
            text = described(plan.problem)
        call_for(platform, text.encode())
    except (Fallback, ConvDispatchError) as error:
        count("left", reason=str(error).splitlines()[0])
        return theirs(ctx, lhs, rhs, **params)
    count("lowered")
    out = ctx.avals_out[0]
    rule = mlir.lower_fun(lambda lhs, rhs: _emit_call(plan, text, out, params, lhs, rhs), multiple_results=False)
    return rule(ctx, lhs, rhs)


def _emit_call(plan: Plan, text: str, out: Any, params: dict[str, Any], lhs: Any, rhs: Any) -> Any:
    """Emit the call of a text, with the transformations of its operands before it and of its result after it."""
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    lhs, rhs = (lax.convert_element_type(operand, out.dtype) for operand in (lhs, rhs))
    if any(map(any, plan.crop)):
        cuts = dict(zip(lhs_spec[2:], plan.crop, strict=True))
        starts = [cuts.get(axis, (0, 0))[0] for axis in range(lhs.ndim)]
        ends = [size - cuts.get(axis, (0, 0))[1] for axis, size in enumerate(lhs.shape)]
        lhs = lax.slice(lhs, starts, ends)
    if plan.reverse_rhs:
        rhs = lax.rev(rhs, tuple(rhs_spec[2:]))  # jax has reversed rhs too, and XLA removes both reversals.
    if plan.regroup > 1:
        rhs = _regrouped(rhs, rhs_spec[0], rhs_spec[1], plan.regroup)
    operands, orders = (lhs, rhs), plan.orders[:2]
    if plan.swapped:
        operands, orders = operands[::-1], orders[::-1]
    call = ffi.ffi_call(
        TARGET,
        jax.ShapeDtypeStruct(out.shape, out.dtype),
        input_layouts=orders,
        output_layouts=plan.orders[2],
        vmap_method="sequential",
    )
    result = call(*operands, problem=text)
    return lax.rev(result, tuple(out_spec[2:])) if plan.reverse_out else result


def _regrouped(w: Any, outer: int, inner: int, groups: int) -> Any:
    """Turn weights ``[g * a, b]`` into ``[g * b, a]``, in the two axes ``outer`` and ``inner``."""
    w = lax.reshape(w, (*w.shape[:outer], groups, w.shape[outer] // groups, *w.shape[outer + 1 :]))
    axes = list(range(w.ndim))
    first_axis, second_axis = outer + 1, inner + (inner > outer)
    axes[first_axis], axes[second_axis] = axes[second_axis], axes[first_axis]
    w = lax.transpose(w, axes)
    return lax.reshape(w, (*w.shape[:outer], w.shape[outer] * w.shape[outer + 1], *w.shape[outer + 2 :]))
