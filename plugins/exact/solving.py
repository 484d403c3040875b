"""What both solvers share: a kernel a pass, launches that pack one operand first, constant weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from convdispatch.api import (
    DTYPES,
    MOST_PHASES,
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    PluginError,
    Solver,
    StepPlan,
    TensorLayout,
    build,
    define,
    epilogue_macros,
    geometry_of,
    kernel_text,
    phase_count,
    proven,
    rates,
    storage_macros,
)  # fmt: skip
from convdispatch.api.activations import parse_activation
from convdispatch.api.cpu import PAGE, cdiv

PACKED_RUN = 16
"""The most channels of a tap that a work item packs."""


class Kernel:
    """One pass of a problem with its tile: every size is computed, nothing is compiled."""

    template: str
    slots = 0
    """Bytes of the workspace besides the packed operand."""

    def __init__(self, problem: ConvProblem, numbers: Mapping[str, int], bm: int) -> None:
        """``bm`` target channels are a tile of the packed operand: the weights, or dy of a weights' gradient."""
        self.problem, self.n, self.weights = problem, dict(numbers), bool(numbers["WEIGHTS"])
        self.size, self.accumulator, n = problem.accumulator_size, DTYPES[problem.dtype].accumulator, self.n
        places, taps = n["IMAGES"] * n["PLACES"], n["C"] * n["TAPS"]
        n["COLUMNS"], n["KA"] = (taps, places) if self.weights else (places, taps)
        n |= {"BM": bm, "MB": cdiv(n["N"], bm), "PACKED_RUN": min(n["CB"], PACKED_RUN)}
        n["IMAGE"] = n["YD"] * cdiv(n["YH"], n["CB"]) if self.weights else cdiv(n["C"], n["CB"])
        n["BLOCKS"] = n["IMAGE"] * (n["IMAGES"] if self.weights else 1)
        self.packed = n["G"] * n["MB"] * n["KA"] * bm * self.size
        """Bytes of the packed operand."""

    def values(self) -> dict[str, Any]:
        """What the template takes beside the macros."""
        raise NotImplementedError

    def compute(self, program: Any, arguments: Sequence[Any], written: Sequence[str]) -> list[Launch]:
        """The launches that read the packed operand; ``arguments`` are the first of them, then what is written."""
        raise NotImplementedError

    def launches(self, context: Any, packed: str, offset: np.int64) -> list[Launch]:
        """The launch that packs an operand into the workspace, from element ``offset`` on; then those that read it from
        ``packed``."""
        n, problem = self.n, self.problem
        source, operand, written = {"fwd": "xwy", "bwd_data": "ywx", "bwd_weights": "xyw"}[problem.direction]
        head = storage_macros(problem.dtype) + macros(problem, n) + kernel_text(__package__, "order.cl")
        program = build(context, head + kernel_text(__package__, self.template, weights=self.weights, **self.values()))
        runs = n["IMAGES"] * n["YD"] * n["YH"] if self.weights else n["TAPS"] * cdiv(n["C"], n["PACKED_RUN"])
        size = (n["BM"], runs, n["G"] * n["MB"])
        packing = Launch(program, "pack", size, None, [operand, "workspace", offset], names=OPERANDS)
        return [packing, *self.compute(program, [source, packed, offset], [written, *problem.epilogue_operands])]


class ExactSolver(Solver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64."""

    reached: float
    """Share of the multiply-add peak at which whole tiles run."""

    def kernel(self, problem: ConvProblem, numbers: Mapping[str, int], config: Mapping[str, Any], units: int) -> Kernel:
        """The kernel of a pass, of which ``numbers`` are the macros, on a device of so many compute units."""
        raise NotImplementedError

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], units: int) -> list[Kernel]:
        """A kernel a pass."""
        return [self.kernel(problem, numbers, config, units) for numbers in passes(problem)]

    def filled(self, problem: ConvProblem, config: Mapping[str, Any]) -> float:
        """The share of a configuration's tiles that is the problem's."""
        return 1.0

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        known = rates(device)
        seconds = problem.flops / (self.reached * self.filled(problem, config) * known.flops)
        return seconds + 3 * len(passes(problem)) * known.launch

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        return refuses(problem, device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        _, packed, slots = _areas(self.kernels(problem, config, device.compute_units))
        return slots + (0 if _constant(problem) else packed)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        require(context, problem.dtype)
        kernels = self.kernels(problem, config, context.devices[0].max_compute_units)
        offsets, packed, slots = _areas(kernels)
        constant = _constant(problem)
        operand, base = ("w", 0) if constant else ("workspace", slots)
        size = kernels[0].size
        steps = [each.launches(context, operand, np.int64((base + at) // size)) for each, at in zip(kernels, offsets)]
        packers, others = [each[0] for each in steps], [step for each in steps for step in each[1:]]
        key = [self.name, str(problem), dict(config)]
        return StepPlan.packing(constant, slots if constant else slots + packed, packers, others, packed, key)


def _constant(problem: ConvProblem) -> bool:
    return problem.constant_weights and problem.direction != "bwd_weights"


def _areas(kernels: list[Kernel]) -> tuple[list[int], int, int]:
    """Byte offsets of the packed operands, the bytes of all, and of the slots, which passes share."""
    areas = Areas(PAGE)
    offsets = [areas.add(kernel.packed) for kernel in kernels]
    return offsets, areas.size, cdiv(max(kernel.slots for kernel in kernels), PAGE) * PAGE


_TEXT = """
#pragma OPENCL FP_CONTRACT OFF
kernel void probe(global const ACC *a, global ACC *y) {
  const size_t i = get_global_id(0);
  y[i] = fma(a[3 * i], a[3 * i + 1], a[3 * i + 2]);
  y[get_global_size(0) + i] = a[3 * i] + a[3 * i + 2];
}
"""


def require(context: Any, dtype: str) -> None:
    """Raises PluginError where the context's device fails."""
    failure = proven(__package__, f"fma of {dtype}", context.devices[0], lambda: _failure(context, dtype))
    if failure is not None:
        raise PluginError(failure)


def cases(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Triples (a, b, c), and their fma and a + c. Sums that two roundings get wrong, subnormal sums and operands."""
    ulp, least = (2.0**-23, 2.0**-149) if dtype == "float32" else (2.0**-52, 2.0**-1074)
    edge = least / ulp  # the smallest normal number
    triples = [
        (1 + ulp, 1 + ulp, -(1 + 2 * ulp), ulp * ulp),
        (1 + ulp, 1 - ulp, -1.0, -ulp * ulp),
        (1 + ulp, 1 + ulp / 2 * 2, 2 / ulp**2, 2 / ulp**2),
        # A tie that the product's last bit breaks, which an intermediate rounding loses.
        (1 + ulp, 2.0**-1 * ulp * (1 - ulp), 1.0, 1.0),
        (1 + ulp, 2.0**-1 * ulp, 1.0, 1 + ulp),
        (edge, 0.5, least, edge / 2 + least),
        (least, 1.0, 0.0, least),
        (3 * least, 0.5, 0.0, 2 * least),
        (edge, -ulp, 2 * least, least),
        (-edge, edge, 0.0, -0.0),
    ]
    table = np.array(triples, dtype)
    with np.errstate(all="ignore"):
        sums = np.concatenate([table[:, 3], table[:, 0] + table[:, 2]])
    return np.ascontiguousarray(table[:, :3]), sums


def _failure(context: Any, dtype: str) -> str | None:
    triples, wanted = cases(dtype)
    got = np.empty_like(wanted)
    program = build(context, storage_macros(dtype) + _TEXT)
    flags, queue = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, cl.CommandQueue(context)
    buffers = [cl.Buffer(context, flags, hostbuf=each) for each in (triples, got)]
    cl.Kernel(program, "probe")(queue, (len(triples),), None, *buffers)
    cl.enqueue_copy(queue, got, buffers[1])
    wrong = np.flatnonzero(got.view(f"u{got.itemsize}") != wanted.view(f"u{wanted.itemsize}"))
    if not wrong.size:
        return None
    which = int(wrong[0])
    a, b, c = triples[which % len(triples)]
    what = f"fma({a!r}, {b!r}, {c!r})" if which < len(triples) else f"{a!r} + {c!r}"
    return f"a fused multiply-add that rounds once and keeps subnormal numbers only, got {got[which]!r} for {what}"


BLOCK = 1024
"""The most products of a block, unless one channel (or one row of a weights' gradient) has more."""
ACTIVATIONS = ("relu", "relu6", "clip", "leaky_relu")
"""Activations of comparisons and at most one multiplication, which every device computes alike."""


def refuses(problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why the definition does not cover a problem, or the device cannot compute it."""
    if problem.math != "reproducible":
        return f"math='reproducible' only, got {problem.math!r}"
    if problem.mb < 1:
        return f"1 image or more, got {problem.mb}"
    if problem.activation and parse_activation(problem.activation)[0] not in ACTIVATIONS:
        return f"activations {', '.join(ACTIVATIONS)} only, which no device rounds otherwise, got {problem.activation}"
    if phase_count(problem) > MOST_PHASES:
        return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
    return None


def passes(problem: ConvProblem) -> list[dict[str, int]]:
    """The macros of each dense pass, of which a data gradient has one for each phase of its stride.

        target[n, place * U + F] = sum over (c, tap) of w[n, c, A + tap * B] source[c, place * S + O + tap * D]

    Along D, H and W: sizes of the source X, of the pass Y, of the target Z, taps T of the kernel's K. TAPS and PLACES
    of the pass; C, N: channels a group; CB: channels of a block, or rows of a weights' gradient's block; WN, WC, WT:
    strides of w. A block has the largest power of two of channels, or rows, with which it has at most BLOCK products.
    """
    geo, w = geometry_of(problem), TensorLayout.of(problem, "w")
    weights, back = problem.direction == "bwd_weights", problem.direction == "bwd_data"
    products = problem.ow if weights else math.prod(geo.kernel)
    shared = {"IMAGES": geo.images, "G": geo.groups, "C": geo.c, "N": geo.m, "WEIGHTS": int(weights)}
    shared |= {"CB": 1 << max(0, (BLOCK // products).bit_length() - 1), "NHWC": int(problem.layout == "nhwc")}
    shared |= {"WN": w.channel if back else w.image, "WC": w.image if back else w.channel, "WT": w.axes[2]}
    shared["W_GROUP"] = problem.oc // problem.g * w.image
    result = []
    for phase in geo.phases:
        empty = not phase.volume
        taps, origin = ((1, 1, 1), (0, 0, 0)) if empty else (phase.taps, phase.origin)
        axes = {
            "X": geo.source.size, "Y": phase.count, "Z": geo.target.size, "K": geo.kernel, "T": taps, "S": geo.step,
            "D": geo.spread, "U": geo.out_step, "F": phase.first, "O": origin, "A": phase.tap0, "B": geo.tap_step,
        }  # fmt: skip
        numbers = {f"{name}{axis}": value for name, each in axes.items() for axis, value in zip("DHW", each)}
        volumes = {"TAPS": math.prod(taps), "PLACES": math.prod(phase.count), "EMPTY": int(empty)}
        result.append({**shared, **numbers, **volumes})
    return result


def macros(problem: ConvProblem, numbers: dict[str, int]) -> str:
    """The numbers and the epilogue as macros; an activation's numbers are rounded to the dtype, not by a compiler."""
    if problem.activation is not None:
        name, given = parse_activation(problem.activation)
        rounded = ",".join(repr(float(np.dtype(problem.dtype).type(number))) for number in given)
        problem = problem.replace(activation=f"{name}({rounded})" if given else name)
    signed = {name: value if value >= 0 else f"({value})" for name, value in numbers.items()}
    return epilogue_macros(problem) + define(**signed)
