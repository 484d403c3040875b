"""The child process in which a worker runs longer commands, such as the kit or the benchmark, on its device.

The function takes the device's address, ``say(words)`` to report its progress, and JSON values; it returns JSON values.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..api.errors import ConvDispatchError
from ..device.child import answer, questions

__all__: list[str] = []


def _serve() -> None:
    """The child process: it reads the device, then on each line a function's ``module:name`` and its arguments."""
    lines = questions()
    address = next(lines)["device"]
    answer({"ready": True})
    for request in lines:
        module, _, name = request["function"].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
            reply: Any = {"made": function(address, lambda at: answer({"at": at}), **request["given"])}
        except (ConvDispatchError, MemoryError, OSError) as error:
            reply = {"failure": str(error) or type(error).__name__}
        answer(reply)


if __name__ == "__main__":
    _serve()
