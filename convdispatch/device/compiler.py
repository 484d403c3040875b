"""A child that compiles kernel text: ``python -m convdispatch.device.compiler PLATFORM DEVICE``; see ``compiling``."""

from __future__ import annotations

import os
import sys

__all__: list[str] = []


def _serve(platform: int, device: int) -> None:
    import pyopencl as cl

    from ..api.errors import BuildFailed
    from .binaries import built
    from .compiling import receive, send

    # Drivers print as they please: answers go where standard output went.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    chosen = cl.get_platforms()[platform].get_devices()[device]
    context = cl.Context([chosen])
    while True:
        try:
            asked, text = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            program = built(context, asked["options"], text.decode())
            send(answers, {}, program.get_info(cl.program_info.BINARIES)[0])
        except BuildFailed as error:
            send(answers, {"failed": str(error), "log": error.log}, b"")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # drivers need not be taken down
