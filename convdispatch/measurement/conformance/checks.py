"""The checks that a plan goes through, in this order; each failure names the first that it did not pass."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import InvalidProblem
from ...api.fault_text import words
from ...api.problem import LAYOUTS, MATHS, ConvProblem
from ...api.solver import Solver
from ...device.runtime import device_info
from ...selection.defensive_copy import ask
from .. import reference
from ..search.trialdata import random_operands
from . import digests
from .data import Data, allowed, data_for
from .memory import FINITE, NAN, ZERO, Fault, LateTray, Tray, holds

CHECKS = {
    "words": "refused in words: one line, the same each time, in little time; a proper name and epilogue",
    "configurations": "tuning choices: at least one, JSON, the same each time; cost a number",
    "plan": "a plan is made and enqueued without an exception",
    "workspace": "workspace size: an integer, as stated, never changing; nothing written outside it",
    "guards": "nothing written outside the output",
    "inputs": "inputs and packed weights unchanged",
    "written": "every output written, over NaN",
    "values": "integer data: bit-exact where the solver claims exactness, else within the error allowed",
    "sums": "where a problem has sums: those of the stored output, also where means are much larger than the spread",
    "deterministic": "the same bits from the same inputs, where the solver claims determinism",
    "stale": "the same result whatever the workspace, and the output, held before",
    "nonfinite": "NaN and infinities reach all outputs that read them (where no activation follows), and no others, "
    "unless the solver says that it spreads them",
    "error": "real data within the error that dtype and math allow",
    "digest": "the bits that every device gives, where math is reproducible",
    "reuse": "the plan used again: other data, other buffers",
    "waits": "enqueue returns while what it must wait for has not happened",
    "order": "the work begins after the events it was given, also on an out-of-order queue",
    "queues": "two plans, each on two queues, all in flight at once",
    "threads": "one plan from two threads at once",
    "keys": "equal pack keys, equal packed bytes: also in other geometries of the same weights",
    "batch": "the same bits for an image in batches of 1 to 64, at each position, where the solver is batch_invariant",
    "families": "data that scaling makes harder: every plane within three times the error of normal data (accuracy)",
}
"""The checks by name, each with a sentence that says what it checks."""
LONG = ("waits", "order", "queues", "threads", "keys", "batch")
"""The checks that only some cases run: those that the case lists mark as long, and the first of each solver and
direction."""
_ACCURACY = "families"
"""The check of the level ``accuracy``, which no other level runs."""

_NONFINITE_SEEDS = (1, 2)
"""Seeds of data that are not finite: a NaN and both infinities, and one NaN alone."""
WAIT_S = 5.0
"""Seconds after which an ``enqueue`` that has not returned counts as a blocking wait, which is a fault."""
RUNS_PER_THREAD = 3
BATCHES = (64, 1, 2, 3, 5, 17)
"""The batches in which each image has the same bits, the first of which holds all images of the others."""
FEW_BATCHES = (17, 1, 3)
"""The batches at levels below ``full``; there are fewer, because each batch size compiles another program."""


class Examination:
    """One solver's plan for one problem under every check; ``run`` raises Fault, or stores errors and passed checks."""

    def __init__(
        self,
        solver: Solver,
        problem: ConvProblem,
        config: Mapping[str, Any],
        stated: int | None,
        queue: cl.CommandQueue,
    ) -> None:
        self.solver, self.problem, self.config, self.queue = solver, problem, config, queue
        self.context = queue.context
        self.stated = stated
        self.errors: dict[str, float] = {}
        self.passed: list[str] = []
        self.plan = self._plan()
        self.size: int = self.plan.workspace_size

    # --- all checks, in their order ----------------------------------------------------------------------------------

    def run(self, long: bool, batches: tuple[int, ...] = FEW_BATCHES) -> None:
        """All checks, or all but LONG. Raises Fault at the first that fails."""
        integer, real = self._data("integer", 1), self._data("real", 2)
        result = self._run_once(integer, NAN)
        self._check_values(result, integer, "values", lambda: self._diagnose(integer, result))
        self._check_equal(result, self._run_once(integer, NAN), "deterministic", "between two runs")
        repeated = self._run_once(integer, FINITE)
        self._check_values(repeated, integer, "stale", lambda: ("stale", "with other numbers in the memory before: "))
        self._check_equal(result, repeated, "stale", "when workspace and output held something else before")
        # An activation may cut a NaN to a number, so plans with one are not checked for lost NaNs.
        if not self.problem.quantized and self.problem.activation is None and self.problem.norm_activation is None:
            for seed in _NONFINITE_SEEDS:
                nonfinite = self._data("nonfinite", seed)
                self._check_nonfinite(self._run_once(nonfinite, FINITE), nonfinite)
        shifted = self._run_once(real, NAN, shift=max(128, self.queue.device.mem_base_addr_align // 8))
        self._check_values(shifted, real, "error", lambda: self._diagnose_reuse(real))
        if self.problem.sums and self.problem.direction == "fwd":
            self._run_once(self._far_from_zero(real), NAN)
        if self.plan.workspace_size != self.size:
            raise Fault("workspace", f"workspace_size was {self.size} and became {self.plan.workspace_size} after runs")
        has_digest = self._check_digest()
        self.passed = [name for name in CHECKS if name not in (*LONG, _ACCURACY, *(() if has_digest else ("digest",)))]
        if long:
            self._order(real)
            self._queues(integer, real)
            self._threads(integer, real)
            self._keys(real)
            self.same_in(batches)
            self.passed += LONG

    # --- one run of a plan over its operands -------------------------------------------------------------------------

    def _plan(self) -> Any:
        try:
            plan = ask(self.solver, "plan", self.context, self.problem, self.config)
        except Exception as error:
            log = str(getattr(error, "log", "")).strip()[:500]
            raise Fault("plan", f"plan raised {words(error)} {log}".strip()) from error
        size = getattr(plan, "workspace_size", None)
        if not callable(getattr(plan, "enqueue", None)):
            raise Fault("plan", f"a plan has enqueue(queue, x, w, y, workspace, wait_for), got {plan!r}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise Fault("workspace", f"workspace_size is bytes from 0 on, got {size!r}")
        if self.stated is not None and size != self.stated:
            raise Fault(
                "workspace", f"the solver states {self.stated} bytes without compiling, its plan asks for {size}"
            )
        return plan

    def _data(self, kind: str, seed: int) -> Data:
        return data_for(self.problem, kind, seed)

    def _far_from_zero(self, data: Data) -> Data:
        """Data of a problem with sums whose outputs copy x, which is far from zero and hardly varies."""
        problem, changed = self.problem, dict(data.operands)
        changed["x"] = (1e4 + 1e-2 * data.operands["x"].astype(np.float64)).astype(data.operands["x"].dtype)
        weights = np.zeros_like(data.operands["w"])
        tap = [getattr(problem, "p" + axis) // getattr(problem, "d" + axis) for axis in problem.axes]
        tap = [min(k, getattr(problem, "k" + axis) - 1) for k, axis in zip(tap, problem.axes, strict=True)]
        weights[(slice(None), *((0, *tap) if problem.layout == "nchw" else (*tap, 0)))] = 1
        if problem.norm:
            changed["norm"] = np.array([[0.0], [1.0], [0.0]], data.operands["norm"].dtype).repeat(problem.ic, axis=1)
        return Data(data.kind, {**changed, "w": weights}, np.empty(0))

    def _tray(self, data: Data, fill: int = NAN, shift: int = 0, plan: Any = None) -> Tray:
        tray = Tray(self.context, self.problem, plan or self.plan, data.operands, fill=fill, shift=shift)
        tray.pack(self.queue)
        return tray

    def compute(self, operands: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the plan's result for operands, in memory that was filled with NaN and lies between guard zones.
        Raises Fault."""
        return self._run_once(Data("real", operands, np.empty(0)), NAN)

    def _run_once(self, data: Data, fill: int, shift: int = 0) -> np.ndarray:
        tray = self._tray(data, fill, shift)
        self._event_of(lambda: tray.enqueue(self.queue)).wait()
        return tray.result(self.queue)

    def _event_of(self, enqueue: Callable[[], Any]) -> Any:
        try:
            event = enqueue()
        except Exception as error:
            raise Fault("plan", f"enqueue raised {words(error)}") from error
        if not callable(getattr(event, "wait", None)):
            raise Fault("plan", f"enqueue returns the event of its last command, got {event!r}")
        return event

    def _check_values(
        self, got: np.ndarray, data: Data, check: str, diagnose: Callable[[], tuple[str, str] | None] = lambda: None
    ) -> None:
        """Raise Fault ``check``, or what ``diagnose`` finds instead, unless ``got`` is the expected result."""
        error = reference.relative_error(got, data.expected)
        limit = allowed(self.problem, data.kind, self.solver.exact)
        self.errors[data.kind] = max(error, self.errors.get(data.kind, 0.0))
        if error <= limit:
            return
        diagnosis = diagnose()
        name, words = diagnosis or (check, "")
        raise Fault(name, f"{words}{_difference(got, data, error, limit)}")

    def _check_nonfinite(self, got: np.ndarray, data: Data) -> None:
        """Raise Fault if an output is finite although it reads a NaN or infinity, or the reverse."""
        spoilt = np.count_nonzero(np.isfinite(data.expected) & ~np.isfinite(got))
        if spoilt and not self.solver.spreads_nonfinite:
            raise Fault(
                "nonfinite", f"{spoilt} outputs that read no NaN or infinity are not finite: spreads_nonfinite says so"
            )
        lost = np.count_nonzero(~np.isfinite(data.expected) & np.isfinite(got))
        if lost:
            raise Fault("nonfinite", f"{lost} outputs are finite that NaN or an infinity meets")

    def _check_digest(self) -> bool:
        """Whether the problem has a digest. Raises Fault if the plan's result has another digest."""
        expected = digests.known().get(str(self.problem))
        if expected is None:
            return False
        actual = digests.digest(self.compute(digests.operands(self.problem)))
        if actual != expected:
            raise Fault("digest", f"its bits have the digest {actual}, every other device's {expected[:12]}...")
        return True

    def _check_equal(self, left: np.ndarray, right: np.ndarray, check: str, when: str) -> None:
        if self.solver.deterministic and left.tobytes() != right.tobytes():
            raise Fault(check, f"{np.count_nonzero(left != right)} outputs differ {when}")

    def _diagnose(self, data: Data, result: np.ndarray) -> tuple[str, str] | None:
        """The cause of a wrong result: memory that was read before it was written (the result is right over zeros), or
        outputs that were not written (they hold each fill); None if neither."""
        try:
            zeros, finite = self._run_once(data, ZERO), self._run_once(data, FINITE)
        except Fault:
            return None
        if reference.relative_error(zeros, data.expected) <= allowed(self.problem, data.kind, self.solver.exact):
            return "stale", "right only where workspace and output held zeros before: "
        unwritten = int(np.count_nonzero(holds(result, NAN) & holds(finite, FINITE)))
        return ("written", f"{unwritten} outputs were not written: ") if unwritten else None

    def _diagnose_reuse(self, data: Data) -> tuple[str, str] | None:
        """The fault ``reuse`` if a new plan is right on the same data, so that the old plan kept a state."""
        fresh = self._plan()
        tray = self._tray(data, plan=fresh)
        self._event_of(lambda: tray.enqueue(self.queue)).wait()
        result = tray.result(self.queue)
        if reference.relative_error(result, data.expected) <= allowed(self.problem, data.kind, self.solver.exact):
            return "reuse", "a new plan is right, this one on its second data is not: "
        return None

    # --- checks that only some cases run, because they take long -----------------------------------------------------

    def _order(self, data: Data) -> None:
        """Enqueue after copies that wait for a user event: the call must return immediately, and the work must wait."""
        out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        modes = [0, out_of_order] if self.queue.device.queue_on_host_properties & out_of_order else [0]
        for mode in modes:
            worker = cl.CommandQueue(self.context, self.queue.device, properties=mode)
            carrier = cl.CommandQueue(self.context, self.queue.device)
            gate = cl.UserEvent(self.context)
            if self.problem.constant_weights and getattr(self.plan, "packed_size", 0):
                tray, events = self._tray(data), [gate]
            else:
                tray = late = LateTray(self.context, self.problem, self.plan, data.operands)
                events = late.deliver(carrier, [gate])
            self._enqueue_behind(gate, lambda tray=tray, worker=worker, after=events: tray.enqueue(worker, after))
            _finish(worker, carrier)
            words = "out-of-order" if mode else "in-order"
            place = ("order", f"on an {words} queue: ")
            self._check_values(tray.result(self.queue), data, "order", lambda place=place: place)

    def _enqueue_behind(self, gate: Any, enqueue: Callable[[], Any]) -> None:
        """Call ``enqueue`` in a thread while ``gate`` is shut, then open it. Raises Fault if it did not return."""
        outcome: list[Any] = []

        def call() -> None:
            try:
                outcome.append(enqueue())
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(WAIT_S)
        waited = thread.is_alive()
        gate.set_status(cl.command_execution_status.COMPLETE)
        thread.join(WAIT_S)
        if waited:
            raise Fault("waits", "enqueue did not return while an event that it was to wait for was open")
        if isinstance(outcome[0], Exception):
            raise Fault("plan", f"enqueue raised {type(outcome[0]).__name__}: {outcome[0]}")
        outcome[0].wait()

    def _queues(self, *sets: Data) -> None:
        """Run two plans, each on two queues with different data, which start only when all are enqueued."""
        second_plan = self._plan()
        if second_plan.workspace_size != self.size:
            raise Fault(
                "workspace",
                f"one plan asks for {self.size} bytes, another of the same for {second_plan.workspace_size}",
            )
        queues = [cl.CommandQueue(self.context, self.queue.device) for _ in range(2)]
        gate = cl.UserEvent(self.context)
        flights = []
        try:
            for turn in range(4):
                data, plan = sets[turn % 2], (self.plan, second_plan)[turn // 2]
                queue = queues[(turn + turn // 2) % 2]
                tray = self._tray(data, plan=plan)
                flights.append((tray, data, self._event_of(lambda t=tray, q=queue: t.enqueue(q, [gate]))))
            for queue in queues:
                queue.flush()
        finally:
            gate.set_status(cl.command_execution_status.COMPLETE)
        for _, _, event in flights:
            event.wait()
        _finish(*queues)
        for tray, data, _ in flights:
            self._check_values(tray.result(self.queue), data, "queues")

    def _threads(self, *sets: Data) -> None:
        """Run the plan from two threads, each with its own queue, data and memory."""
        barrier = threading.Barrier(len(sets))
        work = [[self._tray(data) for _ in range(RUNS_PER_THREAD)] for data in sets]
        faults: list[Exception] = []

        def turn(trays: list[Tray]) -> None:
            try:
                queue = cl.CommandQueue(self.context, self.queue.device)
                barrier.wait()
                for event in [tray.enqueue(queue) for tray in trays]:
                    event.wait()
                _finish(queue)
            except Exception as error:
                faults.append(error)

        threads = [threading.Thread(target=turn, args=(trays,)) for trays in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise Fault("threads", f"enqueue raised {type(faults[0]).__name__} in a thread: {faults[0]}")
        for trays, data in zip(work, sets, strict=True):
            for tray in trays:
                self._check_values(tray.result(self.queue), data, "threads")

    def same_in(self, batches: tuple[int, ...]) -> None:
        """Raise Fault if an image's bits depend on the batch size, in plans of the same configuration."""
        problem, solver, info = self.problem, self.solver, device_info(self.queue.device)
        if not solver.batch_invariant or problem.direction == "bwd_weights" or problem.quantized:
            return
        if ask(solver, "sums_by_batch", problem, info, self.config):
            return
        accepted = [n for n in batches if ask(solver, "rejects", problem.replace(mb=n), info) is None]
        if len(accepted) < 2:
            return
        largest = max(accepted)
        operands = random_operands(problem.replace(mb=largest, constant_weights=False), 3)

        def images_from(start: int, count: int) -> np.ndarray:
            shared = {"w", "bias", "norm"}
            part = {
                name: array if name in shared else np.ascontiguousarray(array[start : start + count])
                for name, array in operands.items()
            }
            return Examination(solver, problem.replace(mb=count), self.config, None, self.queue).compute(part)

        # Each batch is a part of the largest that the solver takes, so each of its images has a counterpart there.
        whole = images_from(0, largest)
        for number, images in enumerate(accepted):
            start = min(5 * number, largest - images)
            got, expected = images_from(start, images), whole[start : start + images]
            wrong = [i for i in range(images) if got[i].tobytes() != expected[i].tobytes()]
            if wrong:
                raise Fault(
                    "batch",
                    f"{len(wrong)} of {images} images have other bits than in a batch of {largest}, the first "
                    f"at position {wrong[0]}: sums_by_batch says so of a configuration, batch_invariant of a solver",
                )

    def _keys(self, data: Data) -> None:
        """Raise Fault if plans with the same pack key pack the same weights into different bytes."""
        if not self.problem.constant_weights or getattr(self.plan, "pack_key", None) is None:
            return
        plans = packing_plans(self.solver, self.problem, self.config, self.context, device_info(self.queue.device))
        fault = disagreement(self.queue, data.operands["w"], [(str(self.problem), self.plan), *plans])
        if fault:
            raise Fault("keys", fault)


def _finish(*queues: cl.CommandQueue) -> None:
    """Finish queues that end with a check, after their events: Intel's runtime for CPUs (2026.22) waits forever where
    the last reference to an out-of-order queue is released by the thread that ends its last command."""
    for queue in queues:
        queue.finish()


def _difference(got: np.ndarray, data: Data, error: float, limit: float) -> str:
    values = got.astype(np.float64)
    scale = max(float(np.abs(data.expected).max(initial=0)), 1e-300)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(values - data.expected) <= max(limit, 1e-12) * scale)
    if not wrong.any():
        wrong = values != data.expected
    first = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
    return (
        f"relative error {error:.3g}, allowed {limit:.3g}, {data.kind} data; "
        f"{int(wrong.sum())} of {wrong.size} outputs "
        f"differ, the first at {first}: got {values[first]:.6g}, expected {data.expected[first]:.6g}"
    )


Packing = tuple[str, Any]
"""A plan, after a description of the problem it was made for."""


def relatives(problem: ConvProblem) -> Iterator[ConvProblem]:
    """Problems that differ from ``problem`` in one number or word, and whose weights have its shape."""
    changes: list[dict[str, Any]] = [{"mb": problem.mb + 1}]
    for axis in problem.axes:
        changes += [{name + axis: getattr(problem, name + axis) + 1} for name in "isd"]
        changes += [{name: getattr(problem, name) + 1} for name in (f"p{axis}", f"p{axis}_r")]
    outer, inner = (2 * problem.ic, problem.oc), (problem.ic, problem.oc // 2)
    changes += [{"g": 2 * problem.g, "ic": ic, "oc": oc} for ic, oc in (outer, inner)]
    changes += [{"direction": word} for word in ("fwd", "bwd_data")]
    changes += [{"layout": word} for word in LAYOUTS] + [{"math": word} for word in MATHS]
    for change in changes:
        try:
            relative = problem.replace(**change)
        except InvalidProblem:
            continue
        if relative != problem and relative.w_shape == problem.w_shape:
            yield relative


def packing_plans(
    solver: Solver, problem: ConvProblem, config: Mapping[str, Any], context: cl.Context, device: DeviceInfo
) -> Iterator[Packing]:
    """The solver's plans for the relatives that it accepts, in ``config`` if it is offered, else in the first one."""
    for relative in relatives(problem):
        if ask(solver, "rejects", relative, device) is None:
            offered = [dict(choice) for choice in ask(solver, "configs", relative, device)]
            chosen = dict(config) if dict(config) in offered else offered[0]
            yield f"{relative} {chosen}", ask(solver, "plan", context, relative, chosen)


def disagreement(queue: cl.CommandQueue, w: np.ndarray, plans: Iterable[Packing]) -> str | None:
    """A sentence that names two plans with the same ``pack_key`` that pack ``w`` differently; None if all agree.

    Plans that pack nothing or state no key are ignored.
    """
    flags = cl.mem_flags
    weights = cl.Buffer(queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(w))
    seen: dict[str, tuple[str, np.ndarray]] = {}
    packing = [(name, plan) for name, plan in plans if getattr(plan, "packed_size", 0)]
    plans_with = Counter(getattr(plan, "pack_key", None) for _, plan in packing)
    for name, plan in packing:
        key, size = getattr(plan, "pack_key", None), plan.packed_size
        if key is None or plans_with[key] < 2:
            continue
        content = np.full(size, 0xA5, np.uint8)
        packed = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=content)
        cl.wait_for_events([plan.pack(queue, weights, packed)])
        cl.enqueue_copy(queue, content, packed)
        first, bytes_of_first = seen.setdefault(key, (name, content))
        if bytes_of_first.size != size:
            return f"{first} and {name} state one pack_key, {key}, but pack {bytes_of_first.size} and {size} bytes"
        if (differing := int(np.count_nonzero(bytes_of_first != content))) != 0:
            return f"{first} and {name} state one pack_key, {key}, but {differing} of {size} packed bytes differ"
    return None
