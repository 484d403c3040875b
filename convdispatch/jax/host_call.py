"""One problem on the CPU: kernels take XLA's own buffers, and the result is there when the handler returns."""

from __future__ import annotations

from typing import Any

from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..calls.fast_path import host_fast_path
from ..calls.framework.host import HostProblem, cpu_device
from . import counting


class HostCall(HostProblem):
    """``call(lead, other, out)`` computes a problem on addresses, operands in the order of ``PLACES``; waits."""

    def __init__(self, problem: ConvProblem) -> None:
        super().__init__(problem, cpu_device(pointers=True))
        self._fast_path = host_fast_path(self, _same, _same, _never)

    def __call__(self, lead: int, other: int, out: int) -> None:
        """Run."""
        queue = self._queue()
        if self._fast_path is not None and self._fast_path(lead, other, out, queue) is None:
            raise InvalidArgument("XLA's buffers for operands and result must be apart, got some over the others")
        counting.ours(self.solver)


def _same(address: int) -> int:
    return address


def _never() -> Any:
    raise AssertionError("the result's memory is XLA's")
