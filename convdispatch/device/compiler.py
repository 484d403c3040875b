"""A child that compiles kernel text, as ``compile_pool`` starts it: ``python -m ... PLATFORM DEVICE``."""

from __future__ import annotations

import contextlib
import os
import sys

__all__: list[str] = []


def _serve(platform: int, device: int) -> None:
    import pyopencl as cl

    from ..api.errors import BuildFailed
    from .cuda.modules import load
    from .cuda_driver import cuda_of
    from .programs.binary_cache import built
    from .programs.child_process import receive, send

    # Drivers print as they please: answers go where standard output went.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    chosen = cl.get_platforms()[platform].get_devices()[device]
    context = cl.Context([chosen])
    cuda = None
    # A GPU's binary may be no machine code: what the driver makes of it is kept by the driver, and found by whoever
    # asked, where it takes a third as long as compiling the text and one thread at a time.
    compiles_further = bool(chosen.type & cl.device_type.GPU)
    while True:
        try:
            request, text = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if not request["is_text"]:
                with contextlib.suppress(Exception):
                    built(context, request["options"], context.devices, [text])
                send(answers, {}, b"")
                continue
            program = built(context, request["options"], text.decode())
            binary = program.get_info(cl.program_info.BINARIES)[0]
            if request["for_cuda"]:
                with contextlib.suppress(Exception):  # the other side says what is wrong with it
                    cuda = cuda or cuda_of(chosen)
                    load(cuda, binary)
            elif compiles_further:
                built(context, request["options"], context.devices, [binary])
            send(answers, {}, binary)
        except BuildFailed as error:
            send(answers, {"failed": str(error), "log": error.log}, b"")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # drivers need not be taken down
