"""Launches for what the kernels of a convolution's plan do not take in: a norm of x before it, sums of channels behind.

The sums are counts, means and squared distances, or a norm's gradients. A plan whose kernels leave the sums of parts of
the result calls ``merging``; ``summing`` reads the result itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.dtypes import storage_macros
from ...api.problem import ConvProblem, norm_macros
from ..programs.kernels import OPERANDS, Launch, build, define, kernel_text
from ..runtime import device_info

CPU_CHUNK = 1024
"""Neighbouring elements that one work item of a CPU computes; a GPU's computes four, or one."""
PART_LENGTH = 256
"""The fewest elements of a channel that one work item sums."""
MAX_PARTS = 4096
"""The most parts that a channel is summed in, so that they take little memory beside the result."""
MERGED_WIDTH, MERGING_ITEMS = 8, 32
"""Channels of a work group that merges parts, and its work items for each channel."""
MERGED_PARTS = 16 * MERGING_ITEMS
"""Parts that one work group merges: short sums are accurate, and few launches follow each other."""


def normalising(
    context: Any,
    problem: ConvProblem,
    operands: Sequence[str] = ("workspace", "x", "norm"),
    *,
    start: int = 0,
    names: Sequence[str] = OPERANDS,
) -> Launch:
    """The launch that writes the norm of x from byte ``start`` of the first of ``operands`` on."""
    size, shape = math.prod(problem.x_shape), problem.x_shape
    inner = 1 if problem.layout == "nhwc" else math.prod(shape[2:])
    on_cpu = device_info(context.devices[0]).type == "cpu"
    quads = not on_cpu and (problem.ic if inner == 1 else inner) % 4 == 0
    chunk = CPU_CHUNK if on_cpu else 4 if quads else 1
    text = storage_macros(problem.dtype) + norm_macros(problem)
    text += define(SIZE=size, INNER=inner, CHUNK=chunk, QUADS=int(quads), START=f"{start // problem.itemsize}L")
    program = build(context, text + kernel_text(__package__, "normalised.cl"))
    return Launch(program, "normalise", (max(1, -(-size // chunk)),), None, operands, names=names)


def part_bytes(problem: ConvProblem) -> int:
    """Bytes of the sums of one part, ``[row][channel]``."""
    return math.prod(problem.form("sums")[0]) * problem.accumulator_size


def merged_bytes(problem: ConvProblem, parts: int) -> int:
    """Bytes of workspace that ``merging`` uses for so many parts, these included."""
    return sum(_rounds(parts)) * part_bytes(problem)


def _rounds(parts: int) -> list[int]:
    """The numbers of parts that each launch of ``merging`` reads."""
    rounds = [parts]
    while rounds[-1] > MERGED_PARTS:
        rounds.append(-(-rounds[-1] // MERGED_PARTS))
    return rounds


def merging(context: Any, problem: ConvProblem, parts: int, start: int = 0) -> list[Launch]:
    """Launches that merge the sums of parts, in their order, to the operand ``sums``. The parts begin at byte ``start``
    of the workspace."""
    program = build(context, _macros(problem) + kernel_text(__package__, "channel_sums.cl"))
    launches, at, step = [], start // problem.accumulator_size, part_bytes(problem) // problem.accumulator_size
    for number in _rounds(parts):
        groups = -(-number // MERGED_PARTS)
        target, to = ("sums", 0) if groups == 1 else ("workspace", at + number * step)
        arguments = ["workspace", target, np.int64(at), np.int64(to), np.int32(number)]
        size = -(-problem.channels_out // MERGED_WIDTH) * MERGED_WIDTH, groups * MERGING_ITEMS
        launches.append(Launch(program, "merge", size, (MERGED_WIDTH, MERGING_ITEMS), arguments, names=OPERANDS))
        at = to
    return launches


def _parts_of(problem: ConvProblem) -> tuple[int, int, int]:
    """The elements of a channel, those of a part, and the number of parts that ``summing`` sums."""
    count = math.prod(problem.out_shape) // problem.channels_out
    length = max(PART_LENGTH, -(-count // MAX_PARTS))
    return count, length, -(-count // length)


def summing_bytes(problem: ConvProblem) -> int:
    """Bytes of workspace that ``summing`` uses."""
    return merged_bytes(problem, _parts_of(problem)[2])


def summing_launches(problem: ConvProblem) -> int:
    """The number of launches of ``summing``."""
    return 1 + len(_rounds(_parts_of(problem)[2]))


def summing(context: Any, problem: ConvProblem, start: int = 0) -> list[Launch]:
    """Launches that read the result from memory and write ``sums``; their workspace begins at byte ``start``."""
    nhwc, channels = problem.layout == "nhwc", problem.channels_out
    count, length, parts = _parts_of(problem)
    # A CPU's core reads neighbours; neighbouring work items of a GPU read neighbours, of pixels or of channels.
    step = 1 if nhwc or device_info(context.devices[0]).type == "cpu" else parts
    inner = 1 if nhwc else count // problem.mb
    text = _macros(problem) + define(INNER=inner, COUNT=f"{count}L", LENGTH=length, STEP=step)
    text += define(CHANNEL_AXIS=int(not nhwc), START=f"{start // problem.accumulator_size}L")
    program = build(context, text + kernel_text(__package__, "channel_sums.cl"))
    names = [problem.written, "workspace", *(("saved", "norm") if problem.masked else ())]
    launch = Launch(program, "sums", (channels, parts) if nhwc else (parts, channels), None, names, names=OPERANDS)
    return [launch, *merging(context, problem, parts, start)]


def _macros(problem: ConvProblem) -> str:
    text = storage_macros(problem.dtype) + (norm_macros(problem) if problem.masked else "")
    rows, channels = problem.form("sums")[0]
    text += define(GROUP=MERGED_PARTS, WIDTH=MERGED_WIDTH, LANES=MERGING_ITEMS)
    return text + define(ROWS=rows, CHANNELS=channels)
