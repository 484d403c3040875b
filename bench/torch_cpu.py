"""Where a net's time goes on the CPU under enable(): our convolutions in the net and alone, PyTorch's other operators.

    python bench/torch_cpu.py [--batch 1] [--net resnet50]

Both sides run in one process, PyTorch alone first. With ``CONVDISPATCH_NATIVE=0`` kernels run in threads of OpenCL. The
convolutions' own time and PyTorch's other operators' bound what ``enable`` can give without joining operators.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import torch
from torch_rows import images, net, say

import convdispatch.torch as ct
from convdispatch.selection.prepared import Constant
from convdispatch.torch.dispatch import engine, routing


def median_ms(run: Callable[[], Any], seconds: float) -> float:
    """Of calls over about so many seconds, the first two apart."""
    times = []
    for _ in range(2):
        run()
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return round(statistics.median(times), 1)


def split_ms(run: Callable[[], Any], compute: Callable[..., Any], seconds: float) -> dict[str, float]:
    """A run whose convolutions are ``compute``'s: all of it, and they alone."""
    real, spent = routing._OPERATORS["convolution"], [0.0]

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        result = compute(*arguments)
        spent[0] += time.perf_counter() - begin
        return result

    routing._OPERATORS["convolution"] = timed
    try:
        with ct.enable():
            run()
            spent[0], count, begin = 0.0, 0, time.perf_counter()
            while time.perf_counter() - begin < seconds:
                run()
                count += 1
            whole = 1e3 * (time.perf_counter() - begin) / count
    finally:
        routing._OPERATORS["convolution"] = real
    return {"whole": round(whole, 1), "convolutions": round(1e3 * spent[0] / count, 1)}


@click.command(help=__doc__)
@click.option("--batch", default=1, show_default=True)
@click.option("--net", "name", default="resnet50", show_default=True)
@click.option("--seconds", default=2.5, show_default=True, help="For each line.")
def main(batch: int, name: str, seconds: float) -> None:
    """Measure."""
    model, x = net(name, "cpu", False, False), images(batch, "cpu", False)

    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    def theirs(*arguments: Any) -> Any:
        return routing.original("convolution", *arguments[:9])

    def tell(what: str, found: Any) -> None:
        say(net=name, batch=batch, threads=torch.get_num_threads(), what=what, ms=found)

    tell("PyTorch alone", median_ms(run, seconds))
    tell("PyTorch, timed", split_ms(run, theirs, seconds))
    taken: list[Any] = []
    stop = engine.watch(lambda part, call, tensors, geometry: taken.append((call, tensors, geometry)))
    with ct.enable():
        run()
    stop()
    promised = [Constant(None) if call.problem.constant_weights else None for call, _, _ in taken]

    def ours_alone() -> None:
        for (call, (a, w, b), _), promise in zip(taken, promised, strict=True):
            call(a, w, None, b, promise)

    def theirs_alone() -> None:
        with torch.inference_mode():
            for _, (a, w, b), g in taken:
                theirs(a, w, b, *map(list, g[:3]), g.transposed, list(g.output_padding), g.groups)

    tell("our convolutions in a row", median_ms(ours_alone, seconds))
    tell("PyTorch's convolutions in a row", median_ms(theirs_alone, seconds))
    tell("ours", split_ms(run, engine.forward, seconds))
    tell("PyTorch alone again", median_ms(run, seconds))


if __name__ == "__main__":
    main()
