"""Local response norms in a quantized net, which a quantizer makes a dozen operations of, as one that looks bytes up.

    y = Q(f(x, mean over neighbouring channels of q(x)))

Between the mean and its window all operations are element-wise, of bytes and of numbers made of bytes, whatever they
are: q is a table of 256 bytes and f one of 65,536, computed once by the operations themselves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...elementwise.tensor import Tensor
from ...nn.normalization.table_norm import table_norm
from ..graph import Graph, Node, Ref, Value
from .integer_nodes import DEQUANTIZE, QUANTIZE, cpu_queue, form_of, give, maker_of

_POINTWISE = ("apply", "activate", QUANTIZE, DEQUANTIZE)
_MOST = 127
"""The most channels of a normalisation window, so that their sum has 16 bits."""


class _Window(NamedTuple):
    """A mean over neighbouring channels: the bytes that it reads and makes, and its geometry."""

    source: Value
    mean: Value
    size: int
    before: int
    zero_point: int


def norms_by_tables(graph: Graph) -> None:
    """Put an operation that looks bytes up in the place of each norm over channels; on CPUs."""
    queue = cpu_queue(graph)
    if queue is None:
        return
    for window in [found_window for node in graph.nodes if (found_window := _window(graph, node)) is not None]:
        roots = _roots(window.source)
        x = next(iter(roots))
        mb, _, channels, *_ = window.mean.shape
        if len(roots) == 1 and _is_bytes(x) and len(x.shape) == 4 and x.shape[:2] == (mb, channels):
            _fold(graph, window, x, queue)
    graph.prune()


def _fold(graph: Graph, window: _Window, x: Value, queue: Any) -> None:
    """Let the last bytes that are made of x and the mean alone be looked up."""
    for node in reversed(graph.nodes):
        if node.name != QUANTIZE or not node.result.is_whole or node.result.shape != x.shape:
            continue
        if _roots(node.result.value) != {x, window.mean}:
            continue
        value_table = _table(window.source, {x: _every(x, (1, 256), queue)}, (1, 256))
        result_table = _table(
            node.result.value,
            {x: _every(x, (256, 256), queue), window.mean: _every(window.mean, (256, 256), queue, rows=True)},
            (256, 256),
        )
        values = value_table.numpy().reshape(-1).astype(np.int32) - window.zero_point
        norm = Node(table_norm, (), {
            "x": x.whole, "values": Tensor.from_numpy(values, queue), "results": result_table, "size": window.size,
            "before": window.before, "zero_point": window.zero_point, "layout": "nchw",
        }, sources=node.sources)  # fmt: skip
        graph.nodes[graph.nodes.index(node)] = norm
        give(norm, node.result.value)
        return


def _window(graph: Graph, node: Node) -> _Window | None:
    """The mean of bytes, in bytes of the same form, over an odd number of channels with zeros around them."""
    pool = maker_of(node.kwargs.get("x"), "pool_axes") if node.name == QUANTIZE else None
    if pool is None or pool.kwargs["kind"] != "average" or len(pool.kwargs["kernel"]) != 3 or pool.kwargs["ceil_mode"]:
        return None
    size, *spatial_kernel = pool.kwargs["kernel"]
    steps = (*spatial_kernel, *pool.kwargs["stride"], *pool.kwargs["dilation"])
    if set(steps) != {1} or size % 2 == 0 or not 1 < size <= _MOST:
        return None
    x, (channels_before, channels_after), *spatial_pads = pool.kwargs["x"], *pool.kwargs["pads"]
    if any(map(any, spatial_pads)) or (
        (channels_before or channels_after) and not pool.kwargs.get("count_include_pad")
    ):
        return None
    form = form_of(node)
    x = _before_same(x, form)
    padded = maker_of(x, "sampled")
    if padded is not None:
        zeros_before = _zeros_before(padded)
        if zeros_before is None:
            return None
        channels_before, x = channels_before + zeros_before, _before_same(padded.kwargs["x"], form)
    source = maker_of(x, DEQUANTIZE)
    if source is None or form_of(source) != form or not source.kwargs["x"].is_flat:
        return None
    mean, shape = node.result.value, x.shape
    if len(shape) != 5 or shape[1] != 1 or mean.shape != shape or channels_before >= size:
        return None
    return _Window(source.kwargs["x"].value, mean, size, channels_before, form[1])


def _before_same(x: Ref, form: tuple[float, int, str]) -> Ref:
    """What is quantized to ``form`` and back, where it is a tensor of zeros and numbers of that form already."""
    maker = maker_of(x, DEQUANTIZE)
    quantizing = None if maker is None or form_of(maker) != form else maker_of(maker.kwargs["x"], QUANTIZE)
    sampling = (
        None if quantizing is None or form_of(quantizing) != form else maker_of(quantizing.kwargs["x"], "sampled")
    )
    return x if sampling is None or quantizing is None else quantizing.kwargs["x"]


def _zeros_before(node: Node) -> int | None:
    """Zeros that are put before the third of five axes, which else stays as it is; None for another operation."""
    arguments = node.kwargs
    if tuple(arguments["axes"]) != (2,) or arguments["fill"] != 0 or arguments["operands"][1] is not None:
        return None
    indices = arguments["operands"][0].numpy().reshape(-1)
    within = np.flatnonzero(indices >= 0)
    channels = arguments["x"].shape[2]
    is_whole = within.size == channels and np.array_equal(indices[within], np.arange(channels))
    return int(within[0]) if is_whole and within[-1] - within[0] == channels - 1 else None


def _is_bytes(value: Value) -> bool:
    return value.dtype.name in ("int8", "uint8")


def _operands(node: Node) -> list[Value] | None:
    """What an element-wise operation reads, all of one size with its result; None for any other operation."""
    arguments = node.kwargs
    if node.name not in _POINTWISE or node.args or arguments.get("out") is not None or not isinstance(node.result, Ref):
        return None
    if node.name == "apply" and not isinstance(arguments.get("expression"), str):
        return None
    size = math.prod(node.result.shape)
    if any(isinstance(each, Tensor) and each.size != 1 for each in arguments.values()):
        return None
    alike = all(ref.is_flat and math.prod(ref.shape) == size for ref in node.refs)
    return [ref.value for ref in node.refs] if alike and node.refs else None


def _roots(value: Value, roots_by_value: dict[Value, frozenset[Value]] | None = None) -> frozenset[Value]:
    """The bytes that a value is made of by element-wise operations alone; itself where it is made of other values."""
    roots_by_value = {} if roots_by_value is None else roots_by_value
    if value not in roots_by_value:
        read = None if value.node is None else _operands(value.node)
        roots = (
            frozenset({value}) if read is None else frozenset().union(*(_roots(each, roots_by_value) for each in read))
        )
        roots_by_value[value] = frozenset({value}) if _is_bytes(value) and not all(map(_is_bytes, roots)) else roots
    return roots_by_value[value]


def _every(value: Value, shape: tuple[int, int], queue: Any, *, rows: bool = False) -> Tensor:
    """All bytes of a value's dtype, by their bits, along the columns or the rows."""
    every = np.arange(256, dtype=np.uint8).view(value.dtype)
    return Tensor.from_numpy(np.ascontiguousarray(np.broadcast_to(every[:, None] if rows else every, shape)), queue)


def _table(value: Value, table_by_value: dict[Value, Tensor], shape: tuple[int, int]) -> Tensor:
    """A value of all bytes of its roots, by the operations that make it."""
    if value not in table_by_value:
        node = value.node
        assert node is not None
        arguments = {
            name: _table(each.value, table_by_value, shape) if isinstance(each, Ref) else each
            for name, each in node.kwargs.items()
        }
        arguments |= {
            name: each.reshape(()) for name, each in arguments.items() if isinstance(each, Tensor) and each.size == 1
        }
        table_by_value[value] = node.function(**arguments)
    return table_by_value[value]
