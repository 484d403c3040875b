"""The exceptions a caller meets, and the one warning.

ConvDispatchError
 ├─ InvalidProblem (ValueError)       a geometry, layout, dtype or math that no convolution has
 ├─ InvalidArgument (ValueError)      an array, path or option that does not fit the call
 ├─ InvalidPolicy (ValueError)        registry.yaml, a lock file or policy(...) cannot be read; names file and line
 ├─ NoDevice                          no OpenCL device works; says what to install
 ├─ NoSolver                          every solver refused; ``reasons`` maps solver to sentence
 ├─ BuildFailed                       a kernel did not compile; ``log`` holds the compiler's words
 ├─ PlanFailed                        a plan failed when it ran and fallback was off or exhausted
 ├─ MemoryLimit (MemoryError)         a device's memory, or the limit set for it, does not suffice
 ├─ Frozen                            frozen() forbade a compilation, allocation, timing or file access
 └─ PluginError                       a plugin broke its contract

ConvDispatchWarning (UserWarning)     something was set aside and the call went on
"""

from __future__ import annotations

from collections.abc import Mapping

_HEAD_CHARACTERS, _TAIL_CHARACTERS = 3500, 1200
"""The numbers of characters of its beginning and of its end to which a longer message is cut."""


class ConvDispatchError(Exception):
    """Base of every error this package raises on purpose. Its text is at most 5,000 characters long."""

    def __str__(self) -> str:
        text = super().__str__()
        left_out = len(text) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
        if left_out <= 100:
            return text
        return f"{text[:_HEAD_CHARACTERS]} [{left_out} characters are left out here] {text[-_TAIL_CHARACTERS:]}"


class InvalidProblem(ConvDispatchError, ValueError):
    """The numbers do not describe a convolution."""


class InvalidArgument(ConvDispatchError, ValueError):
    """An argument has the wrong shape, type, place or value."""


class InvalidPolicy(ConvDispatchError, ValueError):
    """A policy (registry.yaml, lock file, policy(...)) is malformed."""


class NoDevice(ConvDispatchError):
    """No OpenCL device can be used."""


class NoSolver(ConvDispatchError):
    """No solver accepts the problem.

    ``problem`` is the ConvProblem, ``reasons`` maps each solver's name to the sentence with which it refused.
    """

    def __init__(self, problem: object, device: str, reasons: Mapping[str, str]) -> None:
        self.problem = problem
        self.device = device
        self.reasons = dict(reasons)
        lines = "".join(f"\n  {line}" for line in grouped(self.reasons))
        nothing = "no plugin is loaded; see `convdispatch doctor`"
        what = f"{len(self.reasons)} refused:{lines}" if self.reasons else nothing
        super().__init__(f"no solver for {problem} on {device!r}; {what}")


def grouped(reasons: Mapping[str, str | None]) -> list[str]:
    """A line for each reason with the solvers that have it. The smallest group is first: the reason of one solver is
    about the problem, that of thirty is about the device or the policy."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(str(reason), []).append(name)
    return [
        f"{', '.join(group)}: {reason}" if len(group) < 3 else f"{len(group)} solvers ({group[0]}, ...): {reason}"
        for reason, group in sorted(names.items(), key=lambda pair: len(pair[1]))
    ]


class BuildFailed(ConvDispatchError):
    """An OpenCL program did not compile; ``log`` is the compiler's output."""

    def __init__(self, message: str, log: str = "") -> None:
        self.log = log
        super().__init__(message)


class PlanFailed(ConvDispatchError):
    """A plan failed while it ran, and no other candidate could take its place."""


class MemoryLimit(ConvDispatchError, MemoryError):
    """A device's memory, or what a caller allowed its pools, does not suffice."""


class Frozen(ConvDispatchError):
    """Work that frozen() forbids would have been needed."""


class PluginError(ConvDispatchError):
    """A plugin returned a value that its contract does not allow."""


class ConvDispatchWarning(UserWarning):
    """A plugin, record or candidate was set aside; the message says which, why, and what to do."""
