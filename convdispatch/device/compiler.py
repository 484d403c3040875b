"""A child that compiles kernel text for a device, as ``programs.compile_pool`` starts it."""

from __future__ import annotations

import contextlib
import os

import pyopencl as cl

from .child import answer, questions

__all__: list[str] = []


def _serve() -> None:
    from ..api.errors import BuildFailed
    from .cuda.modules import load
    from .cuda_driver import cuda_of
    from .programs.binary_cache import built

    requests = questions()
    platform, number = map(int, next(requests)["device"].split(":"))
    device = cl.get_platforms()[platform].get_devices()[number]
    context = cl.Context([device])
    cuda = None
    # A GPU program's binary may not be machine code yet. Loading it here makes the driver compile it further and cache
    # the result; in the parent process that would take a third of the compile time, one thread at a time.
    compiles_further = bool(device.type & cl.device_type.GPU)
    for request in requests:
        text = request.content
        try:
            if not request["is_text"]:
                with contextlib.suppress(Exception):
                    built(context, request["options"], context.devices, [text])
                answer({})
                continue
            program = built(context, request["options"], text.decode())
            binary = program.get_info(cl.program_info.BINARIES)[0]
            if request["for_cuda"]:
                # The parent process loads the binary too, and reports what is wrong with it.
                with contextlib.suppress(Exception):
                    cuda = cuda or cuda_of(device)
                    load(cuda, binary)
            elif compiles_further:
                built(context, request["options"], context.devices, [binary])
            answer({}, binary)
        except BuildFailed as error:
            answer({"failed": str(error), "log": error.log})


if __name__ == "__main__":
    _serve()
    os._exit(0)  # end without exit handlers: drivers need not be shut down
