"""The same elements as a view of other memory: of a picture in the other layout, or of what a copy was made from.

An activation of a view is the same view of an activation, and so can become a convolution's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...calls.arrays.operands import contiguous_strides, is_contiguous
from ..graph import CONVOLUTIONS, Graph, Ref, Value, operands

Axis = tuple[int, int, int]
"""An axis of a value: its length, its stride, and the stride of the same elements in the other memory, in bytes."""


def activate_whole_values(graph: Graph) -> Graph:
    """Let the one reader of a convolution, an activation of a view that holds each element once, read the whole result,
    and its readers the same view of the activation; the graph is changed in place and returned."""
    uses = graph.uses()
    for node in graph.nodes:
        x = node.kwargs.get("x")
        if node.name != "activate" or not isinstance(x, Ref) or not _is_each_element_once(x):
            continue
        if x.value.node is None or x.value.node.name not in CONVOLUTIONS or uses[x.value] != 1:
            continue
        old, new = node.result.value, Value(x.value.shape, x.value.dtype, node)
        original = replace(x, value=new)
        readers = [ref for other in graph.nodes for ref in other.refs] + list(operands(graph.output))
        views = {ref: of_original(ref, original) for ref in readers if isinstance(ref, Ref) and ref.value is old}
        if None in views.values():
            continue
        node.kwargs["x"], node.result = x.value.whole, new.whole
        graph.change(lambda operand, views=views: views.get(operand, operand) if isinstance(operand, Ref) else operand)
    return graph


def _is_each_element_once(ref: Ref) -> bool:
    """Whether a strided view holds each element of its value, in another order."""
    if ref.strides is None or math.prod(ref.shape) != math.prod(ref.value.shape) or ref.offset:
        return False
    axes = sorted((stride, size) for stride, size in zip(ref.strides, ref.shape, strict=True) if size > 1)
    step = ref.value.dtype.itemsize
    for stride, size in axes:
        if stride != step:
            return False
        step *= size
    return True


def permuted(ref: Ref, order: Sequence[int]) -> Ref:
    """A view with its axes in another order."""
    strides = strides_of(ref)
    return view(ref.value, [ref.shape[a] for a in order], [strides[a] for a in order], ref.offset)


def view(value: Value, shape: Iterable[int], strides: Iterable[int], offset: int) -> Ref:
    """A view whose strides are None where it is contiguous."""
    shape, strides = tuple(shape), tuple(strides)
    return Ref(value, shape, None if is_contiguous(shape, strides, value.dtype.itemsize) else strides, offset)


def strides_of(ref: Ref) -> tuple[int, ...]:
    """The strides of a view in bytes."""
    return contiguous_strides(ref.shape, ref.value.dtype.itemsize) if ref.strides is None else ref.strides


def in_layout(ref: Ref, picture: Value, layout: str) -> Ref | None:
    """A view of a picture as a view of the same picture in ``layout``, which lay in the other layout before; None where
    one stride passes both channels and pixels."""
    shape, itemsize = ref.value.shape, ref.value.dtype.itemsize
    rows = (shape[1], math.prod(shape[2:])) if layout == "nhwc" else (math.prod(shape[1:3]), shape[3])
    image = math.prod(rows) * itemsize
    axes = [(shape[0], image, image), (rows[0], rows[1] * itemsize, itemsize), (rows[1], itemsize, rows[0] * itemsize)]
    return _in_memory(ref, axes, picture, 0)


def of_original(ref: Ref, original: Ref) -> Ref | None:
    """A view of a contiguous copy as a view of what was copied; None where one stride passes several of its axes."""
    axes: list[Axis] = []
    own = contiguous_strides(original.shape, original.value.dtype.itemsize)
    for size, stride, source in zip(original.shape, own, strides_of(original), strict=True):
        if size == 1:
            continue
        if axes and axes[-1][2] == source * size:
            axes[-1] = axes[-1][0] * size, stride, source
        else:
            axes.append((size, stride, source))
    return _in_memory(ref, axes, original.value, original.offset)


def _in_memory(ref: Ref, axes: Sequence[Axis], value: Value, start: int) -> Ref | None:
    """A view whose value has ``axes``, as a view of ``value``, in whose memory those begin at byte ``start``."""
    rest, offset = ref.offset, start
    last = []
    """The greatest index that the view has along each axis."""
    for _, stride, target in axes:
        index, rest = divmod(rest, stride)
        offset += index * target
        last.append(index)
    strides = []
    if rest or any(stride < 0 for stride in strides_of(ref)):
        return None
    for size, stride in zip(ref.shape, strides_of(ref), strict=True):
        steps = 0 if size == 1 else stride
        for number, (length, own, target) in enumerate(axes):
            if steps % own == 0 and last[number] + (size - 1) * (steps // own) < length:
                last[number] += (size - 1) * (steps // own)
                strides.append(steps // own * target)
                break
        else:
            return None
    return view(value, ref.shape, strides, offset)
