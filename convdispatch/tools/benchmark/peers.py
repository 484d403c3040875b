"""Other people's convolutions, run on the same data in the same rounds: what a peer is, and which there are.

A peer is imported when it is asked for and only then. It answers one Variant a way of running it (a layout, say); the
best variant counts. It does what its own users would do, with its own settings at their best, and says them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...api.device import DeviceInfo
from ...api.errors import InvalidArgument
from ...api.problem import ConvProblem

PEERS = {"torch": ".torch_peer", "onnxruntime": ".onnx_peer"}
"""The module with the class ``Peer`` of each peer, by the peer's name."""


class Unable(Exception):
    """The peer cannot run this problem; the message says why."""


@dataclass(frozen=True)
class Variant:
    """One way in which a peer runs a problem."""

    name: str
    run: Callable[[int], None]
    """``run(n)`` computes the convolution n times, each on the next copy of the operands, and waits for all of them."""
    result: Callable[[], np.ndarray]
    """Returns the result for the first copy of the operands, in the problem's layout and dtype."""


class Peer(Protocol):
    """A library to compare with. The constructor raises Unable where the library does not support the device."""

    name: str
    settings: Mapping[str, object]
    """The peer's version, backend, threads and precision, as JSON values."""

    def __init__(self, device: DeviceInfo) -> None: ...

    def variants(self, problem: ConvProblem, host: Mapping[str, np.ndarray], copies: int) -> Sequence[Variant]:
        """The ways to run a problem on ``host``'s operands, in the problem's layout. Raises Unable."""
        ...


def check(names: Sequence[str]) -> None:
    """Raise InvalidArgument for a name that no peer has."""
    for name in names:
        if name not in PEERS:
            raise InvalidArgument(f"no peer is named {name!r}; there are {', '.join(PEERS)}")


def load(names: Sequence[str], device: DeviceInfo) -> tuple[list[Peer], dict[str, str]]:
    """The peers of these names that work here, and why the others do not. Raises InvalidArgument for unknown names."""
    check(names)
    peers, missing = [], {}
    for name in names:
        try:
            peers.append(importlib.import_module(PEERS[name], __package__).Peer(device))
        except (ImportError, Unable) as error:
            missing[name] = str(error)
    return peers, missing


def unable(problem: ConvProblem) -> str | None:
    """Why no peer runs a problem's epilogue, or None. Peers have a bias and a ReLU of their own, and no more."""
    if problem.residual or problem.accumulate or problem.activation not in (None, "relu"):
        return "epilogue: a peer is asked for bias and relu alone"
    if problem.direction != "fwd" and (problem.bias or problem.activation):
        return "epilogue: a gradient is asked for plain"
    return None
