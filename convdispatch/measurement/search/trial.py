"""Tries a plan on real memory: operands between guard zones, outputs against float64, and runs to be timed.

A candidate is verified before it is timed. Its output is filled with NaN and is between guard zones, as is its
workspace. Sampled elements are compared with the float64 reference; every element must be written, and no guard zone or
input changed. A second run shows whether the bits repeat, and a third the error on data of differing scales.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.dtypes import numpy_dtype
from ...api.errors import ConvDispatchError
from ...api.problem import EXTRAS, ConvProblem
from ...device import runtime
from ...device.programs.kernels import build, kernel_text
from ...device.runtime import device_info
from ...selection.prepared import Prepared, enqueue_plan
from ...selection.visible_problem import operand_bytes, visible_problem
from .. import reference
from ..measure import timed
from .families import Scaled
from .trialdata import error_limit, operands_of, random_operands

GUARD = 4096
"""Bytes before and after a guarded buffer; a multiple of every device's sub-buffer alignment."""
PATTERN = np.uint16(0x7FC1)
"""A 16-bit pattern that, repeated, is a NaN in every dtype, with bits that no arithmetic produces."""


class OutOfTime(Exception):
    """The search has no time left for another run."""


class WrongResult(ConvDispatchError):
    """A plan computed a wrong result, or wrote outside its output and workspace."""


@dataclass(frozen=True)
class Checked:
    """The result of verifying a correct plan."""

    normal: float
    """The relative error on sampled elements, for standard normal data."""
    scaled: float
    """The relative error of the worst sampled plane, on data whose images, channels and summed axis differ in scale."""
    deterministic: bool
    """Whether the second run produced the same bits as the first."""
    run_ms: float
    """The wall-clock milliseconds of the second run, submission included."""

    @property
    def error(self) -> float:
        """The larger of both errors."""
        return max(self.normal, self.scaled)


class Harness:
    """The memory of one problem's trials on one queue: several copies of standard normal data, used in turn.

    ``memory_limit`` bounds the bytes allocated at once, a plan's workspace included. Raises MemoryError if not even one
    copy of the operands fits.
    """

    def __init__(self, problem: ConvProblem, queue: cl.CommandQueue, memory_limit: int | None = None):
        self.problem, self.queue = problem, queue
        device = queue.device
        self.memory_limit = min(memory_limit or device.global_mem_size // 2, device.global_mem_size)
        self.host = random_operands(problem, seed=0)
        self.output_bytes = math.prod(problem.out_shape) * problem.out_itemsize
        self.sums_bytes = operand_bytes(problem, "sums") if problem.sums else 0
        size = sum(array.nbytes for array in self.host.values()) + self.output_bytes + self.sums_bytes
        if size > self.memory_limit:
            raise MemoryError(f"the operands of {problem} take {size} bytes, the limit is {self.memory_limit}")
        # There are enough copies of the operands that no cache holds them; half of the memory stays for workspaces.
        wanted = 1 + 2 * device.global_mem_cache_size // max(size, 1)
        room = self.memory_limit // (2 * size)
        # One more copy of the operands is for data of differing scales.
        copies = max(1, min(wanted, 8, room - 1))
        self.memory = _MemoryAccount(self.memory_limit)
        self._operands: list[dict[str, _CountedMemory]] = []
        self._sets = [self._new_set() for _ in range(copies)]
        self._shared: Callable[[], _Scratch | None] = lambda: None
        self._scan = OutputScan(queue, problem.out_itemsize)
        self._sums = {name: self._checksum(name) for name in self.host if name != "initial"}
        self._expected: dict[ConvProblem, tuple[np.ndarray, np.ndarray]] = {}
        self._turn = 0
        self._room_for_scaled = room >= 2
        self._scaled: Scaled | None = None
        self._scaled_set: dict[str, Any] = {}

    # --- verifying a plan's result -----------------------------------------------------------------------------------

    def verify(self, prepared: Prepared, has_time: Callable[[float], bool] = lambda run_ms: True) -> Checked:
        """Run a plan and verify its result. ``has_time`` is called with the milliseconds of each run, and says whether
        to continue. Raises WrongResult, OutOfTime, MemoryError, and what the plan raises."""
        visible = visible_problem(prepared.solver, self.problem)
        checked = self._verify(prepared, visible, False, has_time)
        return checked if visible == self.problem else self._verify(prepared, self.problem, True, has_time)

    def _verify(
        self, prepared: Prepared, problem: ConvProblem, whole: bool, has_time: Callable[[float], bool]
    ) -> Checked:
        """Verify the plan alone, or with ``whole`` the plan followed by the generic epilogue."""
        output = _Guarded(self, self.output_bytes)
        # A plan that runs with the generic epilogue allocates its own workspace, as in a call.
        scratch = _Guarded(self, prepared.workspace_size) if prepared.workspace_size and not whole else None
        packed = self._packed(prepared)
        weights = {"w": packed.memory} if packed else {}
        first_output, count = self._sets[0]["out"], self.output_bytes // problem.out_itemsize
        for turn in range(2):
            output.fill(self.host.get("initial") if problem.accumulate else None)
            if scratch is not None:
                scratch.fill()
            self.queue.finish()
            start = time.perf_counter()
            self._enqueue(prepared, problem, whole, self._sets[0] | weights, output.memory, scratch).wait()
            self.queue.finish()
            run_ms = (time.perf_counter() - start) * 1e3
            if not has_time(run_ms):
                raise OutOfTime(f"a run took {run_ms:.3g} ms")
            output.check("output")
            if scratch is not None:
                scratch.check("workspace")
            if turn == 0 and self.output_bytes:
                cl.enqueue_copy(self.queue, first_output, output.memory, byte_count=self.output_bytes)
        for memory in (first_output, output.memory):
            unwritten = 0 if problem.accumulate else self._scan.unwritten(memory, count)
            if unwritten:
                raise WrongResult(f"{unwritten} of {count} elements were not written")
        self._check_inputs(bool(weights))
        error = max(self._error(problem, memory) for memory in (first_output, output.memory))
        self._check_sums(problem, output)
        differing = self._scan.differ(first_output, output.memory, count)
        self._clear(first_output)
        scaled = self._verify_scaled(prepared, problem, whole, output, scratch, error)
        return Checked(error, scaled, not differing, run_ms)

    @property
    def scaled(self) -> Scaled:
        """The problem's operands of differing scales."""
        self._scaled = self._scaled or Scaled(self.problem)
        return self._scaled

    def _verify_scaled(
        self, prepared: Prepared, problem: ConvProblem, whole: bool, output: _Guarded, scratch: Any, normal: float
    ) -> float:
        """The error on scaled data. Raises WrongResult if it exceeds the problem's limit."""
        # Quantized data are integers, which lose no digits at any scale, and a norm brings x to a scale of its own.
        if problem.quantized or self.problem.norm:
            return 0.0
        data = self.scaled
        with self._scaled_operands(data.host) as operands:
            packed = self._packed(prepared, operands["w"]) if "w" in operands else None
            weights = {"w": packed.memory} if packed else {}
            output.fill(data.host.get("initial") if problem.accumulate else None)
            self._enqueue(prepared, problem, whole, operands | weights, output.memory, scratch).wait()
            self.queue.finish()
        values = self._scan.gather(output.memory, data.at.ravel()) if data.at.size else np.empty(0)
        error = data.error(problem, values.view(numpy_dtype(problem.written_dtype)))
        limit = data.limit(problem, normal)
        if not error <= limit:
            raise WrongResult(f"relative error {error:.2g} on data of differing scales, at most {limit:.2g} is right")
        return error

    @contextlib.contextmanager
    def _scaled_operands(self, host: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
        """Scaled data on the device, in new memory, or in the memory of the first set if there is too little."""
        names = [name for name in host if name != "initial"]
        if self._room_for_scaled and not self._scaled_set:
            owned = {name: _CountedMemory(self, host[name].nbytes, host[name]) for name in names}
            self._operands.append(owned)
            self._scaled_set = {name: buffer.memory for name, buffer in owned.items()}
        if self._scaled_set:
            yield self._scaled_set
            return
        try:
            for name in names:
                cl.enqueue_copy(self.queue, self._sets[0][name], host[name])
            yield {name: self._sets[0][name] for name in names}
        finally:
            for name in names:
                cl.enqueue_copy(self.queue, self._sets[0][name], self.host[name])

    def _error(self, problem: ConvProblem, memory: Any) -> float:
        if problem not in self._expected:
            at = reference.positions(problem)
            self._expected[problem] = at, reference.sample(problem, at, **operands_of(problem, self.host))
        at, expected = self._expected[problem]
        values = self._scan.gather(memory, at).view(numpy_dtype(problem.written_dtype))
        error = reference.relative_error(values, expected)
        if not error <= error_limit(problem):
            raise WrongResult(f"relative error {error:.2g}, at most {error_limit(problem):.2g} counts as right")
        return error

    def _check_sums(self, problem: ConvProblem, output: _Guarded) -> None:
        """Compare ``sums`` with those of the output as it is stored. Raises WrongResult."""
        if not problem.sums:
            return
        written = output.content().view(numpy_dtype(problem.written_dtype)).reshape(problem.out_shape)
        shape, dtype = problem.form("sums")
        sums = np.empty(shape, numpy_dtype(dtype))
        cl.enqueue_copy(self.queue, sums, self._sets[0]["sums"])
        fault = reference.sums_fault(problem, written, sums, self.host)
        if fault:
            raise WrongResult(fault)

    def _check_inputs(self, packed: bool) -> None:
        for name, checksum in self._sums.items():
            if not (packed and name == "w") and self._checksum(name) != checksum:
                # The altered input is restored for the next candidate.
                cl.enqueue_copy(self.queue, self._sets[0][name], self.host[name])
                raise WrongResult(f"it altered its input {name}")

    def _checksum(self, name: str) -> tuple[int, int]:
        return self._scan.checksum(self._sets[0][name], self.host[name].nbytes // self.problem.out_itemsize)

    # --- timing a plan -----------------------------------------------------------------------------------------------

    def sampler(self, prepared: Prepared, expected_ms: float, least_ms: float = 1.0) -> Callable[[], float]:
        """A sample function for ``measure``: it enqueues as many runs as fill ``least_ms``, waits, and returns the
        milliseconds per run.

        Each run uses the next copy of the operands. All samplers share one workspace, whose content before a run is
        arbitrary; each has its own packed weights. Raises MemoryError.
        """
        visible = visible_problem(prepared.solver, self.problem)
        packed = self._packed(prepared)
        shared = self._shared() or _Scratch()
        self._shared = weakref.ref(shared)
        if visible == self.problem:
            shared.reach(self, prepared.workspace_size)
        repeat = max(1, min(200, math.ceil(least_ms / max(expected_ms, 1e-3))))

        def work() -> None:
            weights = {"w": packed.memory} if packed else {}
            for _ in range(repeat):
                self._turn = (self._turn + 1) % len(self._sets)
                operands = self._sets[self._turn]
                scratch = shared.held if prepared.workspace_size else None
                self._enqueue(
                    prepared, self.problem, visible != self.problem, operands | weights, operands["out"], scratch
                )
            self.queue.finish()

        sample = timed(work)
        return lambda: sample() / repeat

    # --- enqueuing a plan --------------------------------------------------------------------------------------------

    def _enqueue(
        self, prepared: Prepared, problem: ConvProblem, whole: bool, memory: Mapping[str, Any], out: Any, scratch: Any
    ) -> cl.Event:
        buffers = {**memory, problem.written: out} | ({"sums": self._sets[0]["sums"]} if problem.sums else {})
        operands = [buffers.get(name) for name in ("x", "w", "y", *EXTRAS)]
        if whole:
            return prepared.enqueue(self.queue, *operands)
        workspace = None if scratch is None else scratch.memory
        return enqueue_plan(problem, prepared.plan, self.queue, operands, workspace)

    def _packed(self, prepared: Prepared, w: Any = None) -> _CountedMemory | None:
        if not prepared.packed_size:
            return None
        packed = _CountedMemory(self, prepared.packed_size)
        prepared.plan.pack(self.queue, w or self._sets[0]["w"], packed.memory).wait()
        return packed

    def _new_set(self) -> dict[str, Any]:
        arrays = {name: array for name, array in self.host.items() if name != "initial"}
        buffers = {name: _CountedMemory(self, array.nbytes, array) for name, array in arrays.items()}
        buffers["out"] = _CountedMemory(self, self.output_bytes)
        if self.problem.sums:
            buffers["sums"] = _CountedMemory(self, self.sums_bytes)
        self._operands.append(buffers)
        self._clear(buffers["out"].memory)
        return {name: buffer.memory for name, buffer in buffers.items()}

    def _clear(self, output: Any) -> None:
        # The output is cleared to zeros, so that a plan that adds to the output reads finite numbers.
        zero = np.zeros(1, np.uint8)
        cl.enqueue_fill_buffer(self.queue, output, zero, 0, max(self.output_bytes, 1))


@dataclass
class _MemoryAccount:
    """The bytes that a harness may allocate, has allocated now, and had allocated at most."""

    limit: int
    held: int = 0
    peak: int = 0


class _CountedMemory:
    """Memory that counts towards the limit as long as it exists. Raises MemoryError beyond the limit.

    It references the account and not the harness, because a cycle of references would keep large buffers alive.
    """

    def __init__(self, harness: Harness, size: int, content: np.ndarray | None = None) -> None:
        # The size stays 0 until the memory is allocated, so that ``__del__`` is right if the allocation raises.
        self.size, self._ledger = 0, harness.memory
        size, ledger = max(size, 1), harness.memory
        if ledger.held + size > ledger.limit:
            raise MemoryError(f"it needs {size} bytes more, {ledger.limit - ledger.held} are left")
        self.memory = runtime.fresh(harness.queue, size, content)
        self.size = size
        ledger.held += size
        ledger.peak = max(ledger.peak, ledger.held)

    def __del__(self) -> None:
        self._ledger.held -= self.size


class _Scratch:
    """The workspace that all samplers of a harness share; it grows, and is freed with the last of them."""

    held: _CountedMemory | None = None

    def reach(self, harness: Harness, size: int) -> None:
        """Grow the workspace to at least ``size`` bytes. Raises MemoryError, and then keeps its size."""
        if size > (self.held.size if self.held else 0):
            before, self.held = self.held.size if self.held else 0, None
            try:
                self.held = _CountedMemory(harness, size)
            except MemoryError:
                self.held = _CountedMemory(harness, before) if before else None
                raise


class _Guarded:
    """Memory with a guard zone on each side."""

    def __init__(self, harness: Harness, size: int) -> None:
        self.queue, self.size = harness.queue, size
        self._room = -(-max(size, 1) // GUARD) * GUARD
        self._held = _CountedMemory(harness, self._room + 2 * GUARD)
        self._whole = self._held.memory
        self.memory = self._whole.get_sub_region(GUARD, max(size, 1))

    def fill(self, content: np.ndarray | None = None) -> None:
        """Fill everything with PATTERN, including the guard zones; then copy ``content``, if given, between them."""
        cl.enqueue_fill_buffer(self.queue, self._whole, PATTERN, 0, self._room + 2 * GUARD)
        if content is not None:
            cl.enqueue_copy(self.queue, self._whole, content.reshape(-1).view(np.uint8), dst_offset=GUARD)

    def content(self) -> np.ndarray:
        """The bytes between the guard zones."""
        return self._bytes(GUARD, GUARD + self.size)

    def check(self, what: str) -> None:
        """Raise WrongResult if a guard zone changed."""
        for name, start, stop in (("before", 0, GUARD), ("after", GUARD + self.size, self._room + 2 * GUARD)):
            zone = self._bytes(start, stop)
            pattern = np.array([PATTERN]).view(np.uint8)[np.arange(start, stop) % 2]
            changed = np.flatnonzero(zone != pattern)
            if len(changed):
                raise WrongResult(f"it wrote {len(changed)} bytes {name} its {what} of {self.size} bytes")

    def _bytes(self, start: int, stop: int) -> np.ndarray:
        content = np.empty(stop - start, np.uint8)
        if stop > start:
            cl.enqueue_copy(self.queue, content, self._whole, src_offset=start)
        return content


_TYPES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


class OutputScan:
    """Checks buffers with elements of ``itemsize`` bytes on one queue. Each call waits for its result."""

    def __init__(self, queue: cl.CommandQueue, itemsize: int) -> None:
        info = device_info(queue.device)
        pattern = sum(int(PATTERN) << 16 * index for index in range(itemsize // 2))
        macros = f"#define ELEMENT {_TYPES[itemsize]}\n#define MARK ((ELEMENT)0x{pattern:x}ul)\n"
        program = build(queue.context, macros + kernel_text(__package__, "output_scan.cl"))
        self._kernels = {name: cl.Kernel(program, name) for name in ("unwritten", "differ", "gather", "checksum")}
        self._queue, self._type = queue, np.dtype(f"u{itemsize}")
        self._marks = itemsize > 1
        self._items = info.compute_units * (64 if info.type == "cpu" else 1024)
        self._counts = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 8)

    def unwritten(self, memory: Any, count: int) -> int:
        """The number of elements, of ``count``, that hold PATTERN; 0 for one-byte elements."""
        if not self._marks:
            return 0
        return int(self._count("unwritten", count, memory)[0])

    def differ(self, one: Any, other: Any, count: int) -> int:
        """The number of elements, of ``count``, whose bits differ between two buffers."""
        return int(self._count("differ", count, one, other)[0])

    def checksum(self, memory: Any, count: int) -> tuple[int, int]:
        """Two 32-bit sums over ``count`` elements, which change if one element changes or two are exchanged."""
        first, second = self._count("checksum", count, memory)
        return int(first), int(second)

    def gather(self, memory: Any, at: np.ndarray) -> np.ndarray:
        """The elements at flat indices, as unsigned integers of the element's size."""
        flags, picked = cl.mem_flags, np.empty(len(at), self._type)
        places = cl.Buffer(
            self._queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(at, np.int64)
        )
        out = cl.Buffer(self._queue.context, flags.READ_WRITE, picked.nbytes)
        self._kernels["gather"](self._queue, (len(at),), None, memory, places, out)
        cl.enqueue_copy(self._queue, picked, out)
        return picked

    def _count(self, name: str, count: int, *memory: Any) -> np.ndarray:
        counts = np.zeros(2, np.uint32)
        cl.enqueue_copy(self._queue, self._counts, counts)
        self._kernels[name](self._queue, (self._items,), None, *memory, np.int64(count), self._counts)
        cl.enqueue_copy(self._queue, counts, self._counts)
        return counts
