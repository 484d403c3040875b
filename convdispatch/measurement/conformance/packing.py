"""Checks that equal pack keys mean equal bytes, because weights are packed once for all plans with the same key.

The geometries of ``relatives`` share the weights' shape, so that a caller may use one ``constant(w)`` in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import InvalidProblem
from ...api.problem import LAYOUTS, MATHS, ConvProblem
from ...api.solver import Solver
from ...selection.defensive_copy import ask

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
    packing = [(words, plan) for words, plan in plans if getattr(plan, "packed_size", 0)]
    plans_with = Counter(getattr(plan, "pack_key", None) for _, plan in packing)
    for words, plan in packing:
        key, size = getattr(plan, "pack_key", None), plan.packed_size
        if key is None or plans_with[key] < 2:
            continue
        content = np.full(size, 0xA5, np.uint8)
        packed = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=content)
        cl.wait_for_events([plan.pack(queue, weights, packed)])
        cl.enqueue_copy(queue, content, packed)
        first, bytes_of_first = seen.setdefault(key, (words, content))
        if bytes_of_first.size != size:
            return f"{first} and {words} state one pack_key, {key}, but pack {bytes_of_first.size} and {size} bytes"
        if (differing := int(np.count_nonzero(bytes_of_first != content))) != 0:
            return f"{first} and {words} state one pack_key, {key}, but {differing} of {size} packed bytes differ"
    return None
