"""``conv_general_dilated``, which always runs on these engines, and ``enable``, which makes jax's own one do so.

This package's primitive has jax's own rules for shapes, types, gradients and batches: the functions of jax's module
that call ``conv_general_dilated`` are copied, with this package's function in its place. They produce convolutions,
each of which is lowered here to a foreign call of this package, or to XLA's operator, whose reason is counted.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Mapping
from typing import Any

import jax
from jax import ffi, lax
from jax._src.interpreters import ad, batching, mlir
from jax._src.lax import convolution as theirs

from ..api import settings as environment
from ..api.errors import ConvDispatchError, InvalidArgument
from ..api.policy import PROMISES, promising
from ..api.problem import MATHS
from ..calls.framework.fallback import Enabled as Enabled
from ..calls.framework.fallback import Fallback
from ..device.places.stream import KINDS
from .calls import TARGET, call_for, count, described, register
from .geometry import Plan, plan_of

_PLATFORMS = ("cpu", *KINDS)
_HALF_DTYPES = ("float16", "bfloat16")
_MATHS = {"DEFAULT": "tf32", "HIGH": "float32", "HIGHEST": "ieee"}
"""The ``math`` option for each of jax's precisions of float32 data; on CPUs jax has no TF32."""
jax_conv_p = theirs.conv_general_dilated_p
_lock = threading.RLock()
_in_force: dict[str, Any] | None = None


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


def _rebound(function: Any) -> Any:
    """A copy of a function of jax's module that calls this package's convolution instead of jax's."""
    names = {"conv_general_dilated": conv_general_dilated, "conv_general_dilated_p": conv_p}
    rebound = types.FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    rebound.__kwdefaults__ = function.__kwdefaults__
    return rebound


_lowering_of_jax = functools.partial(theirs._conv_general_dilated_lower, expand_complex_convolutions=True)
"""jax's rule for the platforms here."""
conv_p = theirs.lax.standard_primitive(
    theirs._conv_general_dilated_shape_rule,
    theirs._conv_general_dilated_dtype_rule,
    "convdispatch_conv_general_dilated",
    sharding_rule=theirs._conv_general_dilated_sharding_rule,
    vma_rule=functools.partial(theirs.core.standard_vma_rule, "conv_general_dilated"),
)


def conv_general_dilated(*args: Any, **kwargs: Any) -> Any:
    """``jax.lax.conv_general_dilated``, the same arguments and meaning, computed here: under ``jit``, ``grad``,
    ``vmap`` and the rest, on CPUs and CUDA devices.

    What cannot be done here (integers, complex numbers, more than three axes of space, programs for several devices)
    XLA does, and ``counters`` says why.
    """
    return _bound(*args, **kwargs)


_bound = _rebound(theirs.conv_general_dilated)
functools.update_wrapper(conv_general_dilated, theirs.conv_general_dilated, assigned=("__annotations__",))
ad.defbilinear(
    conv_p, _rebound(theirs._conv_general_dilated_transpose_lhs), _rebound(theirs._conv_general_dilated_transpose_rhs)
)
batching.fancy_primitive_batchers[conv_p] = _rebound(theirs._conv_general_dilated_batch_rule)
mlir.register_lowering(conv_p, theirs._conv_general_dilated_lower)
for _platform in _PLATFORMS:
    mlir.register_lowering(conv_p, functools.partial(lower, _platform, _lowering_of_jax, {}), platform=_platform)


def enable(*, math: str | None = None, batch_invariant: bool | None = None, strict_nan: bool | None = None) -> Enabled:
    """Compute what ``jax.lax.conv_general_dilated`` and all that is made of it ask for here: Flax, Equinox, Keras.

    From the call on, or inside ``with enable():``; programs that were compiled before are compiled anew. ``math`` is
    ``conv``'s for float32 data; None obeys jax's precision. ``batch_invariant`` and ``strict_nan`` are ``policy``'s;
    None leaves them to the policy under which a program is compiled. What cannot be done here XLA does, and
    ``counters`` says why. Raises InvalidArgument, and InvalidPolicy for a promise that is no bool.
    """
    environment.check()
    if math is not None and math not in MATHS:
        raise InvalidArgument(f"math must be None or one of {', '.join(MATHS)}, got {math!r}")
    promises = {"batch_invariant": batch_invariant, "strict_nan": strict_nan}
    with promising(promises):  # checks the kinds of the values
        previous = _in_force
    _set({"math": math, **promises})
    return Enabled(lambda: _set(previous))


def disable() -> None:
    """Let XLA compute convolutions again."""
    _set(None)


def _set(settings: dict[str, Any] | None) -> None:
    global _in_force
    with _lock:
        if settings == _in_force:
            return
        _in_force = settings
        for platform in _PLATFORMS:
            ours = functools.partial(lower, platform, _lowering_of_jax, settings)
            rule = _lowering_of_jax if settings is None else ours
            mlir.register_lowering(jax_conv_p, rule, platform=platform)
        jax.clear_caches()  # Programs in jax's caches were compiled with the previous lowering rules.
