"""The settings that apply to a call: the arguments of ``enable``, PyTorch's own switches, and the policy in force."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ..api.errors import InvalidArgument
from ..api.policy import PROMISES, Policy, current_policy
from ..api.problem import MATHS

_C: Any = torch._C

benchmark = _C._get_cudnn_benchmark
"""Whether ``torch.backends.cudnn.benchmark`` is set."""


class Settings(NamedTuple):
    """The arguments of ``enable``."""

    math: str | None = None
    solver: str | None = None
    min_flops: float | None = None
    batch_invariant: bool | None = None
    strict_nan: bool | None = None
    accumulate_grad: bool | None = None

    @property
    @functools.lru_cache(maxsize=16)  # noqa: B019 (a tuple of a few words)
    def promises(self) -> dict[str, bool]:
        """The promises that were asked of ``enable``, which go before those of the policy in force."""
        return {name: value for name in PROMISES if (value := getattr(self, name)) is not None}


DEFAULT = Settings()


def checked(math: Any, solver: Any, min_flops: Any, **promises: Any) -> Settings:
    """The arguments of ``enable`` as Settings. Raises InvalidArgument for invalid values."""
    if math is not None and math not in MATHS:
        raise InvalidArgument(f"math must be None or one of {', '.join(MATHS)}, got {math!r}")
    if solver is not None and not isinstance(solver, str):
        raise InvalidArgument(f"solver must be None or a solver's name or glob, got {solver!r}")
    if min_flops is not None and (isinstance(min_flops, bool) or not isinstance(min_flops, int | float)):
        raise InvalidArgument(f"min_flops must be None or a number, got {min_flops!r}")
    for name, value in promises.items():
        if not isinstance(value, bool | None):
            raise InvalidArgument(f"{name} must be None, True or False, got {value!r}")
    return Settings(math, solver, min_flops, **promises)


def _tf32_by_cudnn() -> bool:
    try:
        return _C._get_cudnn_allow_tf32()
    except RuntimeError:  # PyTorch refuses to read the old switch once the new one is set
        return torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]


def switches(on_cuda: bool) -> tuple[bool, bool]:
    """PyTorch's switches that decide a call, for its cache key: whether TF32 is allowed, whether it is deterministic.

    Read where ``torch.backends`` reads them: its properties take longer than all the rest of a call's look-up.
    """
    deterministic = _C._get_deterministic_algorithms()
    if on_cuda:
        return _tf32_by_cudnn(), deterministic or _C._get_cudnn_deterministic()
    return _C._get_float32_matmul_precision() != "highest", deterministic


def math_of(settings: Settings, switched: tuple[Any, ...], dtype: str) -> str:
    """The math mode that was requested, else what PyTorch's switches allow; float32 for other dtypes."""
    if dtype != "float32" and settings.math != "reproducible":
        return "float32"
    return settings.math or ("tf32" if switched[0] else "float32")


def policy_of(settings: Settings, switched: tuple[Any, ...]) -> Policy:
    """The policy in force, combined with what ``enable`` and PyTorch request; without the tier, which is in no cache
    key."""
    current = current_policy()
    if current.tier is not None:
        current = replace(current, tier=None)
    # What is reproducible waits for its own kernel too: PyTorch's has other bits.
    deterministic = bool(switched[1]) or settings.math == "reproducible"
    if settings.solver is None and not settings.promises and not deterministic:
        return current
    return replace(
        current,
        solver=settings.solver or current.solver,
        deterministic=current.deterministic or deterministic,
        **settings.promises,
    )
