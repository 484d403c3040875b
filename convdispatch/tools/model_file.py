"""A model file on the command line: its inputs from files or at random, its convolutions as named problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..measurement.shapes import Entry

PICTURE_SIDE = 224
"""The height and width of a picture if the model file leaves them open."""


def is_model(name: str) -> bool:
    """Whether a command's argument names an ONNX file."""
    return str(name).endswith(".onnx")


def input_shapes(net: Any, batch: int | None, given: Mapping[str, Any] | None = None) -> list[tuple[int, ...]]:
    """A shape for each input: that of the array ``given`` for it, else the file's, its open sizes 1 for the first axis
    (or ``batch``), 224 for a picture's sides and 1 elsewhere."""
    shapes = []
    for port in net.inputs:
        if given and port.name in given:
            shapes.append(tuple(given[port.name].shape))
            continue
        if port.shape is None:
            raise InvalidArgument(f"the file does not say the shape of {port.name!r}: give it an array by --input")
        shape = []
        for axis, size in enumerate(port.shape):
            if axis == 0 and batch is not None and port.shape:
                shape.append(batch)
            elif isinstance(size, int):
                shape.append(size)
            else:
                shape.append(PICTURE_SIDE if len(port.shape) == 4 and axis > 0 else 1)
        shapes.append(tuple(shape))
    return shapes


def entries_of_model(
    path: Path | str, *, batch: int | None = None, layout: str | None = None, device: Any = None
) -> list[Entry]:
    """The convolutions of a model as it runs, with what is fused into them, named in order; equal ones are counted.

    In both layouts where ``layout`` is None, since the net takes the faster one. Raises InvalidArgument.
    """
    from ..onnx import load

    net = load(path, device=device)
    entries = counted(net.problems(*input_shapes(net, batch), layout=layout))
    if not entries:
        raise InvalidArgument(f"{path} has no convolutions with constant weights")
    return entries


def counted(problems: Iterable[Any]) -> list[Entry]:
    """An entry per distinct problem, named by the number of its first layer, with how many layers have it."""
    counts: dict[Any, Entry] = {}
    for number, problem in enumerate(problems, 1):
        equal = counts.get(problem)
        counts[problem] = Entry(f"conv{number}", problem, 1) if equal is None else equal._replace(count=equal.count + 1)
    return list(counts.values())


def read_inputs(
    net: Any, texts: Sequence[str], batch: int | None, seed: int = 0
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays for every input, and what is random among them.

    A text is ``name=file``, or a file alone for a net of one input: ``.npy`` or ``.npz`` (arrays by name).
    Raises InvalidArgument for what cannot be read or does not belong.
    """
    ports = {port.name: port for port in net.inputs}
    arrays: dict[str, np.ndarray] = {}
    for text in texts:
        name, sign, file_name = text.partition("=")
        file = Path(file_name if sign else text)
        if not sign and file.suffix != ".npz":
            if len(ports) != 1:
                raise InvalidArgument(f"the net has inputs {', '.join(ports)}: name one, --input NAME={text}")
            name = next(iter(ports))
        arrays |= _arrays(file, name if sign or file.suffix != ".npz" else None)
    for name in arrays:
        _port(ports, name)
    if batch is not None:
        arrays = {name: _repeated(array, batch) for name, array in arrays.items()}
    rng, random = np.random.default_rng(seed), []
    for port, shape in zip(net.inputs, input_shapes(net, batch, arrays), strict=True):
        if port.name not in arrays:
            arrays[port.name] = rng.standard_normal(shape).astype(port.dtype)
            random.append(port.name)
    return arrays, random


def _port(ports: Mapping[str, Any], name: str) -> Any:
    if name not in ports:
        raise InvalidArgument(
            f"the net has no input {name!r}; there are {', '.join(map(str, ports.values())) or 'none'}"
        )
    return ports[name]


def _arrays(file: Path, name: str | None) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) if file.suffix == ".npz" else file.open("rb") as opened:
            if file.suffix == ".npz":
                return {name or key: opened[key] for key in opened.files}
            return {str(name): np.load(opened, allow_pickle=False)}
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"{file} cannot be read as an array: {error}") from None


def _repeated(array: np.ndarray, batch: int) -> np.ndarray:
    if not array.shape or len(array) == batch:
        return array
    if batch % len(array):
        raise InvalidArgument(f"a batch of {batch} is no multiple of the {len(array)} that were given")
    return np.concatenate([array] * (batch // len(array)))
