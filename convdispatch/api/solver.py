"""Solver and Plan: the two things a plugin writes.

A solver is stateless: it returns whether and how it can compute a problem. A plan is one compiled convolution, which
can be enqueued any number of times, on any queue of its context, from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .device import DeviceInfo
from .dtypes import FLOATS
from .problem import ConvProblem

if TYPE_CHECKING:
    import pyopencl as cl

EPILOGUE = frozenset({"bias", "residual", "activation", "accumulate"})
"""The operations that may follow the convolution itself."""
PARTS = EPILOGUE | {"norm", "sums"}
"""All parts of a problem that a solver may fuse; a solver that says nothing fuses none, and EPILOGUE holds what most
kernels that have an epilogue fuse."""


@runtime_checkable
class Plan(Protocol):
    """One compiled convolution.

    ``x``, ``w`` and ``y`` are OpenCL buffers that start at the tensor's first element and are contiguous in the
    problem's layout; ``direction`` says which of them is written.
    """

    workspace_size: int
    """Bytes of scratch memory that ``enqueue`` needs; pure, sufficient, independent of free memory.

    A plan may also have ``recordable = False``: it enqueues by its own means (pyopencl's calls, a vendor's library).
    It is then always handed an OpenCL queue and OpenCL buffers, and a recording calls it anew at each replay. Without
    that it gives its commands by ``Launch`` and what is made of it (``KernelPlan``, ``StepPlan``, ``GemmPlan``) only,
    and ``queue`` may be whatever these take: an OpenCL queue, a recording, a CUDA stream, a host's memory. A plan whose
    work may fail after ``enqueue`` may have ``finished()``, which raises why, for those who waited for the event.
    """

    def enqueue(
        self,
        queue: cl.CommandQueue,
        x: cl.MemoryObject,
        w: cl.MemoryObject,
        y: cl.MemoryObject,
        workspace: cl.MemoryObject | None,
        wait_for: Sequence[cl.Event] | None = None,
    ) -> cl.Event:
        """Enqueue the work and return the event of its last command. Never waits, never allocates.

        A plan whose solver fuses bias, residual, norm or sums also takes them, as keywords of these names, and
        ``saved`` of a data gradient with ``norm``; they are passed only where the problem has them. ``sums`` is
        written. On an out-of-order queue the plan chains its own commands by events.
        """
        ...


class Solver(ABC):
    """One way to compute convolutions. Subclass it, and return an instance from ``convdispatch_solvers``."""

    name: str
    """``plugin.variant``, for example ``winograd.f4x3``; unique among the loaded plugins."""
    deterministic: bool = True
    """The same inputs give the same bits, every time."""
    batch_invariant: bool = False
    """An image's result and data gradient have the same bits for every batch size and position in the batch, under one
    configuration. A solver that does not say so is no candidate under ``policy(batch_invariant=True)``."""
    exact: bool = False
    """Small integer data give exact results, as a direct sum does (no transform rounds them)."""
    spreads_nonfinite: bool | None = None
    """Whether an infinity or NaN in the tensor that is convolved (x, or dy of a data gradient) may reach outputs of its
    plane that do not read it, as it reaches the whole tile of a transform (Winograd, FFT). Only a solver that says
    False is a candidate under ``policy(strict_nan=True)``. The kit holds a solver that says nothing to False too."""
    dtypes: Collection[str] | Mapping[str, Collection[str]] = FLOATS
    """The dtypes of x that the solver computes, or those by direction. It is never asked about another, nor about one
    that the device cannot store; int8 and uint8 are those of quantized problems (``problem.quantized``)."""
    reproducible: bool = False
    """Its results have the same bits on every device: those that docs/use/reproducibility.md defines. Only such solvers
    are asked about problems with ``math="reproducible"``."""
    predicts: bool = True
    """Whether ``cost`` may return seconds. A plugin none of whose solvers do is asked only where a record, a lock file,
    a rule or a pin may put it first, where no other solver is left, and by ``explain`` and ``find``."""
    fuses: frozenset[str] = frozenset()
    """The elements of PARTS that the solver's plans compute; dispatch adds what is missing in a pass of its own."""

    def serves(self, device: DeviceInfo) -> str | None:
        """Why this solver computes nothing on the device, whatever the problem, or None; ``rejects`` says it first.

        Spares the question what might become of a problem for it by rewriting.
        """
        return None

    @abstractmethod
    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """The first reason why this solver cannot compute the problem on the device, or None.

        Cheap and pure: compiles nothing for the problem. What must be asked of the device itself (does a probe kernel
        run, is a library there) is asked once a process and kept. Words: lower case, no full stop, *limit, got value*,
        as in ``"3x3 only, got 5x5"``. The problem holds no part of the epilogue that the solver does not fuse.
        """

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """Tuning choices for an accepted problem, the one to use without measuring first. JSON values only."""
        return [{}]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """Predicted seconds, launches included, at the device's ``rates``; None when unknown.

        Orders the search and the choice among unmeasured solvers; never decides against a measurement.
        """
        return None

    def least_seconds(self, problem: ConvProblem, device: DeviceInfo) -> float:
        """Seconds below which ``cost`` is for no configuration, without listing any; 0.0 when unknown.

        Spares a choice the configurations of a solver that cannot be the fastest. Also asked about problems that the
        solver would reject; any answer is right there.
        """
        return 0.0

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Bytes of workspace that the plan of ``config`` will ask for, without compiling; None when unknown.

        Lets the caller's limit choose among ``configs``: the first one within it is used, so a solver that can work
        in pieces yields configurations of falling workspace.
        """
        return None

    def sums_by_batch(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> bool:
        """Whether a configuration sums in an order that depends on the batch, although the solver is
        ``batch_invariant``: for instance one that splits sums where a batch is too small to fill the device."""
        return False

    @abstractmethod
    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """Compile one configuration. Called once per (context, problem, config).

        When ``problem.constant_weights`` is set, the plan may have ``packed_size`` (bytes, above 0) and
        ``pack(queue, w, packed, wait_for=None) -> Event``: the packed form is made once, kept with the constant,
        and passed to ``enqueue`` in the place of ``w``. Equal ``pack_key`` values (a string) share one packed form.
        """
