"""The straight-line functions of one geometry: transforms along each axis between a line, a slot and a spectrum.

A forward transform reads lines (the real axis) and writes the slot, then transforms the other axes from the slot, the
last one into the spectrum. An inverse transform does the reverse. Strides are literals: arguments are only pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..transforms import codelet
from .geometry import Geometry


@dataclass(frozen=True)
class _Elements:
    """Complex elements in memory: part 0 (real) or 1 of element i is at ``pointer[i * stride + part * lanes]``."""

    pointer: str
    stride: int
    lanes: int
    stream: bool = False
    """Whether stores to these elements are non-temporal: they bypass the caches."""

    def address(self, name: str) -> str:
        """The address of an element by the name a codelet gives it; a bare index is a real part."""
        part, index = (name[0], int(name[1:])) if name[0] in "ri" else ("r", int(name))
        offset = index * self.stride + (self.lanes if part == "i" else 0)
        return f"{self.pointer} + {offset}{'L' if offset > 0x7FFFFFFF else ''}"

    def read(self, name: str) -> str:
        return f"LOAD{'L' if self.pointer == 't' else 'W'}({self.address(name)})"

    def write(self, name: str, value: str) -> str:
        store = "STREAM" if self.stream else "STOREL" if self.pointer == "t" else "STOREW"
        return f"{store}({self.address(name)}, {value});"


def _numbered(wanted: Iterable[int]) -> Callable[[str], str]:
    """Return a function that renames the computed outputs to their positions in ``wanted``."""
    index_of = {k: index for index, k in enumerate(wanted)}
    return lambda name: f"{name[0]}{index_of[int(name[1:])]}" if name[0] in "ri" else str(index_of[int(name)])


def _function(name: str, parameters: str, body: str) -> str:
    return f"inline void {name}({parameters}) {{\n{body}}}\n\n"


def _scaled(value: str, power: float) -> str:
    return value if power == 1 else f"{power!r}f * ({value})"


def _zeros(target: _Elements, ks: Iterable[int]) -> str:
    return "".join(f"  {target.write(f'i{k}', '(V)(0.0f)')}\n" for k in ks)


def _prefetch(elements: _Elements, count: int, write: bool) -> str:
    """Return statements that prefetch the elements of a panel's next row, which are far apart in memory."""
    parts = [f"{kind}{k}" for k in range(count) for kind in "ri"]
    return "".join(f"  PREFETCH({elements.address(part)} + {2 * elements.lanes}, {int(write)});\n" for part in parts)


def forward_functions(
    g: Geometry, name: str, given: tuple[int, ...], stride: int, conjugate: bool, stream: bool = False
) -> str:
    """OpenCL functions ``<name>_line`` (line to slot) and, if needed, ``_edge``, ``_middle`` and ``_column``.

    ``given``: elements along d, h, w that may differ from 0. ``stride``: floats from frequency to frequency of the
    spectrum. ``conjugate``: the spectrum's conjugate is written. ``stream``: stores bypass the caches.
    """
    power = g.prescales[0] if name == "source" else 1.0
    sizes, order, lanes = g.tiling.sizes, g.order, g.lanes
    n = sizes[order[0]]
    real_frequencies = [0] + ([n // 2] if n % 2 == 0 and n > 1 else [])
    if len(order) == 1:
        target, kind = _Elements("s", stride, lanes, stream), "global float *restrict s"
    else:
        target, kind = _Elements("t", g.lines(given) * 2 * lanes, lanes), "local float *restrict t"

    def signed(output: str, value: str) -> str:
        if not conjugate or output[0] != "i":
            return value
        return value[1:] if value.startswith("-") else "-" + value

    def write(output: str, value: str) -> str:
        value = signed(output, value)
        return target.write(output, _scaled(value, power) if len(order) == 1 else value)

    body = codelet(n, "real_forward", given=given[order[0]]).text(lambda j: f"line[{j}]", write)
    if not g.edges:
        body += _zeros(target, real_frequencies)
    text = _function(f"{name}_line", f"const V *restrict line, {kind}", body)
    if len(order) == 1:
        return text
    kind_of_transform = "inverse" if conjugate else "forward"
    spectrum, pair = _Elements("s", stride, lanes, stream), 2 * lanes
    if len(order) == 3:
        middle_size = g.tiling.sizes[order[1]]
        slot = _Elements("t", pair, lanes)
        body = codelet(middle_size, kind_of_transform, given=given[order[1]]).text(slot.read, slot.write, in_place=True)
        text += _function(f"{name}_middle", "local float *t", body)
        slot = _Elements("t", middle_size * pair, lanes)
    else:
        slot = _Elements("t", pair, lanes)
    last = order[-1]
    parameters = "local const float *restrict t, global float *restrict s"

    def scaled(output: str, value: str) -> str:
        return spectrum.write(output, _scaled(value, power))

    body = codelet(sizes[last], kind_of_transform, given=given[last]).text(slot.read, scaled)
    text += _function(f"{name}_column", parameters, ("" if stream else _prefetch(spectrum, sizes[last], True)) + body)
    if g.edges:

        def conjugated(output: str, value: str) -> str:
            return scaled(output, signed(output, value))

        m = sizes[last]
        body = codelet(m, "real_forward", given=given[last]).text(slot.read, conjugated)
        body += _zeros(spectrum, [0] + ([m // 2] if m % 2 == 0 else []))
        text += _function(f"{name}_edge", parameters, body)
    return text


def inverse_functions(g: Geometry, name: str, wanted: tuple[tuple[int, ...], ...], stride: int) -> str:
    """OpenCL functions ``<name>_line`` (slot to line) and, if needed, ``_edge``, ``_middle`` and ``_column``.

    ``wanted``: the elements along d, h, w to compute, which are written contiguously. ``stride``: floats from frequency
    to frequency of the spectrum.
    """
    sizes, order, lanes = g.tiling.sizes, g.order, g.lanes
    n, pair = sizes[order[0]], 2 * lanes
    counts = tuple(len(part) for part in wanted)
    spectrum = _Elements("s", stride, lanes)
    if len(order) == 1:
        source, kind = spectrum, "global const float *restrict s"
    else:
        source, kind = _Elements("t", g.lines(counts) * pair, lanes), "local const float *restrict t"
    line_index = _numbered(wanted[order[0]])
    code = codelet(n, "real_inverse", wanted=wanted[order[0]], halved=bool(g.edges))
    body = code.text(source.read, lambda j, value: f"line[{line_index(j)}] = {value};")
    text = _function(f"{name}_line", f"{kind}, V *restrict line", body)
    if len(order) == 1:
        return text
    last = order[-1]
    column_index = _numbered(wanted[last])
    slot = _Elements("t", (sizes[order[1]] if len(order) == 3 else 1) * pair, lanes)
    parameters = "global const float *restrict s, local float *restrict t"

    def write(output: str, value: str) -> str:
        return slot.write(column_index(output), _scaled(value, g.prescales[1]))

    body = codelet(sizes[last], "inverse", wanted=wanted[last]).text(spectrum.read, write)
    text += _function(f"{name}_column", parameters, _prefetch(spectrum, sizes[last], False) + body)
    if g.edges:
        body = codelet(sizes[last], "real_inverse", wanted=wanted[last]).text(spectrum.read, write)
        text += _function(f"{name}_edge", parameters, body)
    if len(order) == 3:
        middle, middle_slot = order[1], _Elements("t", pair, lanes)
        middle_index = _numbered(wanted[middle])
        code = codelet(sizes[middle], "inverse", wanted=wanted[middle])
        body = code.text(middle_slot.read, lambda j, value: middle_slot.write(middle_index(j), value), in_place=True)
        text += _function(f"{name}_middle", "local float *t", body)
    return text
