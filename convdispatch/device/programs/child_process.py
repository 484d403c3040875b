"""A child process that works for one device, and the messages that go to and fro: a JSON object and bytes each."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl as cl

_FEW_THREADS = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Of a child's NumPy, which starts as many as there are processors otherwise, and computes nothing."""
_HEAD = struct.Struct("<QQ")
"""Bytes of the JSON part of a message, and of the other."""


class DeviceChild:
    """``python -m module PLATFORM DEVICE``, which reads with ``receive`` and answers with ``send``."""

    def __init__(self, module: str, device: cl.Device) -> None:
        from ..opencl.platforms import address

        home = str(Path(__file__).parents[3])
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), home]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *address(device).split(":")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_FEW_THREADS, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def ask(self, said: dict[str, Any], content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """What it answers. Raises OSError, EOFError or ValueError for a child that is no help."""
        send(self._process.stdin, said, content)  # type: ignore[arg-type]
        return receive(self._process.stdout)  # type: ignore[arg-type]

    def close(self) -> None:
        """End it now."""
        with contextlib.suppress(OSError):
            self._process.kill()
            self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def send(stream: IO[bytes], said: dict[str, Any], content: bytes) -> None:
    """A message: a JSON object and bytes."""
    head = json.dumps(said).encode()
    stream.write(_HEAD.pack(len(head), len(content)) + head + content)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises EOFError where there is none."""
    sizes = stream.read(_HEAD.size)
    if len(sizes) < _HEAD.size:
        raise EOFError("the other side has ended")
    head, size = _HEAD.unpack(sizes)
    said, content = json.loads(stream.read(head)), stream.read(size)
    if len(content) < size:
        raise EOFError("the other side has ended")
    return said, content
