"""Compare the bits of results under ``math="reproducible"`` with the committed digests, by the public calls.

python -m bench digests                   # NumPy's arrays on the CPU
python -m bench digests --device nvidia   # arrays on an OpenCL device
python -m bench digests --device cuda     # PyTorch's tensors on CUDA
"""

from __future__ import annotations

import sys
from typing import Any

import click
import numpy as np

from bench.place import Place, options_of
from convdispatch import (
    ConvDispatchError,
    ConvProblem,
    constant,
    conv,
    conv_backward_data,
    conv_backward_weights,
    conv_transpose,
)
from convdispatch.device import runtime
from convdispatch.measurement.conformance import digests


def result(place: Place, problem: ConvProblem) -> np.ndarray:
    """What the public call gives for the problem's seeded operands."""
    operands = digests.operands(problem)
    arrays = {name: place.bring(np.ascontiguousarray(array)) for name, array in operands.items()}
    options: dict[str, Any] = options_of(problem)
    if problem.accumulate:
        options |= {"out": arrays["initial"], "accumulate": True}
    fused = {
        "bias": arrays["bias"] if problem.bias else None,
        "residual": arrays["residual"] if problem.residual else None,
        "activation": problem.activation,
    }
    w = constant(arrays["w"]) if problem.constant_weights else arrays["w"]
    if problem.direction == "fwd":
        return place.fetch(conv(arrays["x"], w, **fused, **options))
    if problem.direction == "bwd_weights":
        return place.fetch(conv_backward_weights(arrays["x"], arrays["y"], problem.w_shape, **options))
    if problem.bias:
        least = transposed_sizes(problem)
        sizes = [getattr(problem, "i" + axis) for axis in problem.axes]
        options["output_padding"] = tuple(size - each for size, each in zip(sizes, least, strict=True))
        return place.fetch(conv_transpose(arrays["y"], w, **fused, **options))
    return place.fetch(conv_backward_data(arrays["y"], w, problem.x_shape, **options))


def transposed_sizes(problem: ConvProblem) -> list[int]:
    """The sizes of a transposed convolution's result without ``output_padding``."""

    def size(axis: str) -> int:
        of = {letter: getattr(problem, letter + axis) for letter in "oskdp"}
        return (of["o"] - 1) * of["s"] + (of["k"] - 1) * of["d"] + 1 - of["p"] - getattr(problem, f"p{axis}_r")

    return [size(axis) for axis in problem.axes]


@click.command()
@click.option("--device", default="cpu", show_default=True, help="cpu, an OpenCL device's name, or cuda.")
def main(device: str) -> None:
    """Print the problems whose bits differ, and how many agree; exits with 1 where any differs."""
    place = Place(device)
    print(f"{runtime.device_info(place.queue.device)}, arrays of {device}")
    agree, known = 0, digests.known()
    for text, digest in known.items():
        try:
            same = digests.digest(result(place, ConvProblem.parse(text))) == digest
        except ConvDispatchError as error:
            print(f"{text}: {error}", flush=True)
            continue
        agree += same
        if not same:
            print(f"{text}: other bits", flush=True)
    print(f"{agree} of {len(known)} digests agree")
    sys.exit(agree != len(known))


if __name__ == "__main__":
    main()
