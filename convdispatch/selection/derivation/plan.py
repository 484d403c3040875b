"""Runs a rewriting: copies into areas of the workspace, the inner plan on them, copies back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...api.device import DeviceInfo
from ...api.problem import ConvProblem
from ...device.memory.allocator import sub_region
from ...device.plans.steps import Areas
from ...device.runtime import device_info
from ..layer_chain import enqueue_plan
from .rewriting import Rewritten

if TYPE_CHECKING:
    import pyopencl as cl


class Room:
    """Offsets in the derived plan's workspace of the copies and of the inner plan's workspace, in bytes."""

    def __init__(self, rewritten: Rewritten, device: DeviceInfo, inner_size: int, packed: bool) -> None:
        areas = Areas(max(128, device.buffer_alignment))
        operand_bytes = rewritten.operand_bytes
        self.size_of = {name: size for name, size in operand_bytes.items() if not (packed and name == "w")}
        self.start_of = {name: areas.add(size) for name, size in self.size_of.items()}
        self.inner_size, self.inner_start = inner_size, areas.add(inner_size) if inner_size else 0
        self.workspace_size = areas.size


class DerivedPlan:
    """A plan that runs the plan of the rewritten problem between copies.

    Constant weights are packed by the inner plan if it reads the caller's weights, else by rotating them once.
    """

    def __init__(self, context: Any, problem: ConvProblem, rewritten: Rewritten, inner: Any) -> None:
        self.problem, self._rewritten, self._inner = problem, rewritten, inner
        self._w_through = rewritten.through.get("w") == "w"
        inner_packed = getattr(inner, "packed_size", 0) if rewritten.inner.constant_weights else 0
        self._pack_inner = bool(self._w_through and inner_packed)
        packs = problem.constant_weights and rewritten.parts == 1 and any(c.source == "w" for c in rewritten.copies)
        self._pack_own = bool(packs)
        self.packed_size = inner_packed if self._pack_inner else rewritten.operand_bytes["w"] if packs else 0
        self.pack_key = getattr(inner, "pack_key", None) if self._pack_inner else None
        self._room = Room(rewritten, device_info(context.devices[0]), inner.workspace_size, self._pack_own)
        self.workspace_size = self._room.workspace_size
        self.recordable = getattr(inner, "recordable", True)
        parts = range(rewritten.parts)
        copies = [copy for copy in rewritten.copies if not (packs and copy.target == "w")]
        self._before = [[(copy, copy.launch(context, problem, part)) for copy in copies] for part in parts]
        self._after = [[(copy, copy.launch(context, problem, part)) for copy in rewritten.back] for part in parts]
        self._packer = next((c.launch(context, problem) for c in rewritten.copies if packs and c.target == "w"), None)

    def pack(self, queue: cl.CommandQueue, w: Any, packed: Any, wait_for: Any = None) -> cl.Event:
        """Write the packed form of constant weights, which ``enqueue`` then reads instead of ``w``."""
        if self._packer is None:
            return self._inner.pack(queue, w, packed, wait_for)
        return self._packer(queue, (packed, w), wait_for)

    def enqueue(
        self,
        queue: cl.CommandQueue,
        x: Any,
        w: Any,
        y: Any,
        workspace: Any,
        wait_for: Sequence[cl.Event] | None = None,
        *,
        bias: Any = None,
        residual: Any = None,
    ) -> cl.Event:
        """Enqueue the copies, the inner convolution and the copies back, in this order, for each part."""
        outer = {"x": x, "w": w, "y": y}
        room, through = self._room, self._rewritten.through
        inner = {name: sub_region(workspace, room.start_of[name], size) for name, size in room.size_of.items()}
        inner |= {name: outer[source] for name, source in through.items()}
        if self._pack_own:
            inner["w"] = w
        scratch = sub_region(workspace, room.inner_start, room.inner_size) if room.inner_size else None
        for copies_before, copies_after in zip(self._before, self._after, strict=True):
            for copy, launch in copies_before:
                wait_for = [launch(queue, (inner[copy.target], outer[copy.source]), wait_for)]
            operands = (inner["x"], inner["w"], inner["y"], bias, residual)
            wait_for = [enqueue_plan(self._rewritten.inner, self._inner, queue, operands, scratch, wait_for)]
            for copy, launch in copies_after:
                wait_for = [launch(queue, (outer[copy.source], inner[copy.target]), wait_for)]
        return wait_for[0]  # type: ignore[index]
