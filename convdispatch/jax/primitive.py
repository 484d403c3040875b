"""``conv_general_dilated``, which always runs on these engines, and ``enable``, which makes jax's own one do so.

This package's primitive has jax's own rules for shapes, types, gradients and batches: the functions of jax's module
that call ``conv_general_dilated`` are copied, with this package's function in its place.
"""

from __future__ import annotations

import functools
import threading
import types
from typing import Any

import jax
from jax._src.interpreters import ad, batching, mlir
from jax._src.lax import convolution as theirs

from ..api import settings as environment
from ..api.errors import InvalidArgument
from ..api.policy import promising
from ..api.problem import MATHS
from ..calls.framework.fallback import Enabled as Enabled
from ..device.places.stream import KINDS
from .lowering import lower

_PLATFORMS = ("cpu", *KINDS)
jax_conv_p = theirs.conv_general_dilated_p
_lock = threading.RLock()
_in_force: dict[str, Any] | None = None


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
