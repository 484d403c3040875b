"""policy(...) and frozen(): settings for the calls inside a ``with`` block, per thread and task."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from . import settings
from .errors import Frozen, InvalidPolicy
from .literals import Tier

if TYPE_CHECKING:
    from .problem import ConvProblem

__all__ = ["Policy", "current_policy", "forbid_when_frozen", "frozen", "policy"]

CHOICE_BATCH = 32
"""The batch size for which ``batch_invariant`` chooses a solver: typical of servers, and enough to fill a device."""
CHOICE_PIXELS = 256
"""The fewest output pixels of that batch, because images of one pixel are rows of a matrix product, which has many."""
CHOICE_BYTES = 16 << 20
"""If input and output have more bytes, that batch is halved: a few large images fill a device, and nets on CPUs compute
batches in slices of as many bytes."""


@dataclass(frozen=True)
class Policy:
    """The caller's constraints on the selection of a solver. Part of the plan cache's key."""

    solver: str | None = None
    """A solver's name or glob (``"winograd.*"``); only these are candidates."""
    max_error: float | None = None
    """Largest admitted relative error (norm, against float64); measured, or stated by the solver's class."""
    workspace_limit: int | None = None
    """The largest workspace, in bytes, that a plan may need."""
    deterministic: bool = False
    """Only solvers whose results repeat bit for bit."""
    strict_nan: bool | None = None
    """An infinity or NaN of the tensor that is convolved reaches the results that read it, and no other: only solvers
    that say so. None: as ``CONVDISPATCH_STRICT_NAN`` says."""
    batch_invariant: bool | None = None
    """An image's result and data gradient have the same bits for every batch size, and at every position in the batch:
    the solver is chosen as for a batch of ``CHOICE_BATCH`` images. Weights' gradients repeat bit for bit. None: as
    ``CONVDISPATCH_BATCH_INVARIANT`` says."""
    fallback: bool = True
    """When a plan fails as it runs, quarantine it and run the next candidate."""
    tier: str | None = None
    """``"full"``: a first call waits for its specialised kernel. ``"ready"``: it is answered at once by what is ready
    (a framework's own kernel; in ``conv()`` a general one), until the specialised kernel is compiled in the background.
    None: as the caller's framework has it; ``conv()`` waits, and a net that is built with nothing cached begins in the
    layout that is predicted fastest. ``deterministic``, ``frozen()`` and ranks of one training always wait, and
    ``conv()`` under a pinned solver."""
    frozen: bool = False
    """No compilation, timing, file access or allocation: raise Frozen instead."""

    def __post_init__(self) -> None:
        # A Policy is part of the key of every warm call, so its hash is computed once.
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in self.__dataclass_fields__)))

    def __repr__(self) -> str:
        return f"Policy({', '.join(f'{name}={value!r}' for name, value in self.changed.items())})"

    @property
    def changed(self) -> dict[str, Any]:
        """The fields that are not at their default."""
        chosen = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in chosen.items() if value != type(self).__dict__[name]}

    @property
    def selection(self) -> Policy:
        """This policy reduced to the fields that affect which plan is chosen."""
        invariant = _simplest(self.batch_invariant, settings.BATCH_INVARIANT.value())
        strict = _simplest(self.strict_nan, settings.STRICT_NAN.value())
        unchanged = self.batch_invariant is invariant and self.strict_nan is strict
        if self.fallback and not self.frozen and self.tier is None and unchanged:
            return self
        return replace(self, frozen=False, fallback=True, tier=None, batch_invariant=invariant, strict_nan=strict)

    @property
    def is_strict_nan(self) -> bool:
        """Whether this policy, or the environment, asks for solvers that spread no infinity or NaN."""
        return settings.STRICT_NAN.value() if self.strict_nan is None else self.strict_nan

    @property
    def is_invariant(self) -> bool:
        """Whether this policy, or the environment, asks for results that do not depend on the batch."""
        return settings.BATCH_INVARIANT.value() if self.batch_invariant is None else self.batch_invariant

    @property
    def repeats(self) -> bool:
        """Whether the same call must give the same bits in every run."""
        return self.deterministic or self.is_invariant

    @property
    def binds(self) -> bool:
        """Whether the policy promises something of the results that other libraries' kernels need not keep."""
        return self.repeats or self.is_strict_nan

    @property
    def promises(self) -> dict[str, Any]:
        """The arguments of ``policy`` that promise something of the results, for work in another thread or process."""
        return {
            "deterministic": self.deterministic,
            "batch_invariant": self.is_invariant,
            "strict_nan": self.is_strict_nan,
        }

    def problem_of_choice(self, problem: ConvProblem) -> ConvProblem:
        """The problem for which a solver is chosen: the problem itself, or under ``batch_invariant`` the same for a
        batch that follows from the image alone. Weights' gradients are sums over the batch: each size is chosen for."""
        if problem.mb == 0 or problem.direction == "bwd_weights" or not self.is_invariant:
            return problem
        images = max(CHOICE_BATCH, CHOICE_PIXELS // (problem.od * problem.oh * problem.ow))
        per_image = problem.itemsize * (math.prod(problem.x_shape[1:]) + math.prod(problem.y_shape[1:]))
        while images > 1 and images * per_image > CHOICE_BYTES:
            images //= 2
        return problem if problem.mb == images else problem.replace(mb=images)

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]


def _simplest(chosen: bool | None, environment: bool) -> bool | None:
    """The simplest value of a field whose None means the environment's value, so that equivalent policies are equal."""
    if chosen is None:
        return environment or None
    return chosen if chosen or environment else None


DEFAULT = Policy()
"""The policy outside of all ``policy`` blocks."""
_current: ContextVar[Policy] = ContextVar("convdispatch_policy", default=DEFAULT)
ask_policy: Callable[[], Policy] = _current.get
"""``current_policy`` as a C function, which native code calls."""


def current_policy() -> Policy:
    """The policy of the current thread and task."""
    return _current.get()


class _Unchanged:
    def __repr__(self) -> str:
        return "unchanged"


_UNCHANGED: Any = _Unchanged()
"""The default of each argument of ``policy``: the value outside the block stays."""


@contextlib.contextmanager
def policy(
    *,
    solver: str | None = _UNCHANGED,
    max_error: float | None = _UNCHANGED,
    workspace_limit: int | None = _UNCHANGED,
    deterministic: bool = _UNCHANGED,
    strict_nan: bool | None = _UNCHANGED,
    batch_invariant: bool | None = _UNCHANGED,
    fallback: bool = _UNCHANGED,
    tier: Tier | None = _UNCHANGED,
    frozen: bool = _UNCHANGED,
) -> Iterator[Policy]:
    """Set some of Policy's fields inside the ``with`` block; the others stay as they are outside it.

    Raises InvalidPolicy for a value of the wrong kind.
    """
    choices = {name: value for name, value in locals().items() if value is not _UNCHANGED}
    _check(choices)
    chosen = replace(_current.get(), **choices)
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        # ContextVar.reset raises ValueError if the block ends in another context than it began in, where the policy
        # was never set.
        with contextlib.suppress(ValueError):
            _current.reset(token)


PROMISES = ("batch_invariant", "strict_nan")
"""The fields of a policy that back ends, sessions and ``enable`` also take as options."""


def promising(options: Mapping[str, bool | None]) -> contextlib.AbstractContextManager[Policy]:
    """``policy`` with the fields of PROMISES in ``options``; None leaves a value unchanged. Raises InvalidPolicy."""
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return policy(**chosen)


def frozen() -> contextlib.AbstractContextManager[Policy]:
    """Inside the block a call that would compile, time, allocate or touch a file raises Frozen instead."""
    return policy(frozen=True)


def forbid_when_frozen(what: str) -> None:
    """Raise Frozen if frozen() is in force; ``what`` completes "this call would have to ..."."""
    if _current.get().frozen:
        raise Frozen(f"inside frozen() this call would have to {what}; run it once before freezing")


_KINDS: dict[str, tuple[type, ...]] = {
    "solver": (str, type(None)),
    "max_error": (int, float, type(None)),
    "workspace_limit": (int, type(None)),
    "deterministic": (bool,),
    "strict_nan": (bool, type(None)),
    "batch_invariant": (bool, type(None)),
    "fallback": (bool,),
    "frozen": (bool,),
    "tier": (str, type(None)),
}


def _check(choices: dict[str, Any]) -> None:
    for name, value in choices.items():
        if not isinstance(value, _KINDS[name]) or (isinstance(value, bool) and bool not in _KINDS[name]):
            kinds = " or ".join(kind.__name__ for kind in _KINDS[name])
            raise InvalidPolicy(f"policy({name}=...) takes {kinds}, got {value!r}")
        if name == "tier" and value not in (None, "full", "ready"):
            raise InvalidPolicy(f'policy(tier=...) takes None, "full" or "ready", got {value!r}')
        if name in ("max_error", "workspace_limit") and value is not None and cast(float, value) < 0:
            raise InvalidPolicy(f"policy({name}=...) takes 0 or more, got {value!r}")
