"""Compare the bits of results under ``math="reproducible"`` with the committed digests, by the public calls.

python -m bench digests                   # NumPy's arrays on the CPU
python -m bench digests --device nvidia   # arrays on an OpenCL device
python -m bench digests --device cuda     # PyTorch's tensors on CUDA
"""

from __future__ import annotations

import sys

import click
import numpy as np

from bench.place import Place, call
from convdispatch import ConvDispatchError, ConvProblem, constant
from convdispatch.device import runtime
from convdispatch.measurement.conformance import digests


def result(place: Place, problem: ConvProblem) -> np.ndarray:
    """What the public call gives for the problem's seeded operands."""
    operands = digests.operands(problem)
    arrays = {name: place.bring(np.ascontiguousarray(array)) for name, array in operands.items()}
    if problem.constant_weights:
        arrays["w"] = constant(arrays["w"])
    unused = {"bias": problem.bias, "residual": problem.residual, "initial": False}
    operands = {name: array for name, array in arrays.items() if unused.get(name, True)}
    return place.fetch(call(problem, operands, **({"out": arrays["initial"]} if problem.accumulate else {})))


@click.command()
@click.option("--device", default="cpu", show_default=True, help="cpu, an OpenCL device's name, or cuda.")
def main(device: str) -> None:
    """Print the problems whose bits differ, and how many agree; exits with 1 where any differs."""
    place = Place(device)
    print(f"{runtime.device_info(place.queue.device)}, arrays of {device}")
    agree, known = 0, digests.known()
    for text, digest in known.items():
        try:
            found = digests.digest(result(place, ConvProblem.parse(text)))
        except ConvDispatchError as error:
            print(f"{text}: {error}", flush=True)
            continue
        agree += found == digest
        if found != digest:
            print(f"{text}: other bits, {found}", flush=True)
    print(f"{agree} of {len(known)} digests agree")
    sys.exit(agree != len(known))


if __name__ == "__main__":
    main()
