"""Passes over a graph: convolutions, and norms, take in what follows them.

Batch norms, and products and sums with a constant for each channel, are folded into the weights and the bias (in
float64), a sum with another tensor becomes the residual, an activation the epilogue's; what element-wise operations are
left are put together. Each pass touches a convolution only where nobody else reads what it would no longer compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ...device.runtime import device_info
from ...device.tracing import named_arguments
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..graph import Graph, Node, Ref, Value
from .incremental_concat import nest_concats
from .integer_formulas import merge_integers
from .padding import take_in_zeros
from .pointwise import element_formula, merge
from .quantization import to_integers
from .views import activate_whole_values

Rule: TypeAlias = "Callable[[Graph, Node, dict[Value, int]], tuple[Node, dict[str, Any]] | None]"
"""Returns the convolution that takes in what a node computes, and its new options; None where there is none."""
CONVOLUTIONS = "convolution", "transposed_convolution"
NORMS = "standardize", "grouped"
"""The norms by statistics of their input, which take an activation in."""


def fuse(graph: Graph, is_rounded: bool = False) -> Graph:
    """Apply all passes until none finds anything; the graph is changed in place and returned.

    ``is_rounded`` says that the weights will be rounded to 16 bits: then no constants are folded into them. Some
    weights may still be computed when this returns: see ``graph.background``.
    """
    for node in graph.nodes:
        _name_arguments(node)
    to_integers(graph)
    take_in_zeros(activate_whole_values(graph))
    uses = graph.uses()
    rules = _RULES | {"apply": (_add,)} if is_rounded else _RULES
    while sum([_fuse_one(graph, node, uses, rules.get(node.name, ())) for node in list(graph.nodes)]):
        pass
    return nest_concats(merge_integers(merge(graph)))


def _name_arguments(node: Node) -> None:
    """Bind positional operands to their names, so that passes look at names alone."""
    named = named_arguments(node.function, node.args, node.kwargs)
    if named is not None:
        node.args, node.kwargs = (), named


def _fuse_one(graph: Graph, node: Node, uses: dict[Value, int], rules: tuple[Rule, ...]) -> bool:
    changes = (rule(graph, node, uses) for rule in rules)
    changed = next((change for change in changes if change is not None), None)
    if changed is None:
        return False
    producer, options = changed
    # The fused convolution moves to its follower's place, because its further operands may be computed in between.
    graph.take_in(producer, node, **options)
    # Nothing reads the intermediate value any more; the operands of both nodes are read as often as before.
    uses.pop(producer.result.value)
    return True


def _producer(
    uses: dict[Value, int], ref: Any, *, free_of: tuple[str, ...], kinds: tuple[str, ...] = CONVOLUTIONS
) -> Node | None:
    """The operation of one of ``kinds`` whose whole result ``ref`` is and nobody else reads, if it has none of these
    options yet."""
    if not isinstance(ref, Ref) or not ref.is_flat or uses.get(ref.value) != 1:
        return None
    node: Node | None = ref.value.node
    if node is None or node.name not in kinds or any(node.kwargs.get(option) is not None for option in free_of):
        return None
    return node


def _fold(graph: Graph, node: Node, uses: dict[Value, int]) -> tuple[Node, dict[str, Any]] | None:
    arguments = node.kwargs
    producer = _producer(uses, arguments["x"], free_of=("activation", "residual"))
    if (
        producer is None
        or arguments.get("training")
        or arguments.get("layout", "nchw") != producer.kwargs.get("layout", "nchw")
    ):
        return None
    w, bias = producer.kwargs["w"], producer.kwargs.get("bias")
    names = ("scale", "shift", "running_mean", "running_variance")
    if any(isinstance(value, Ref) for value in (w, bias, *(arguments[name] for name in names))):
        return None  # Weights that the net itself computes cannot be folded when the net is built.
    parts = [arguments[name].numpy() for name in names]
    factor, shift = functional.folding(*parts, arguments.get("epsilon", 1e-5), None if bias is None else bias.numpy())
    options = _folded(graph, producer, factor, shift)
    return producer, options | {name: arguments.get(name) for name in ("activation", "residual")}


def _folded(graph: Graph, producer: Node, factor: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """The options of a convolution whose weights are multiplied by a factor of each result's channel."""
    w = producer.kwargs["w"]
    weights = _scaled(graph, w, _along_results(producer, factor, w.shape))
    return {"w": weights, "bias": Tensor.from_numpy(bias.astype(w.dtype), w.queue)}


def _fold_constant(graph: Graph, node: Node, uses: dict[Value, int]) -> tuple[Node, dict[str, Any]] | None:
    """Fold a product with, or a sum of, a constant of each channel, as layer scales and biases of their own are.

    Weights of 16 bits are left as they are: a small factor would cost digits.
    """
    formula = element_formula(node)
    if formula is None or len(formula[1]) != 2 or node.kwargs.get("dtype") is not None:
        return None
    text, operands = formula[0].replace(" ", ""), formula[1]
    (x_name, x), (constant_name, constant) = sorted(operands.items(), key=lambda item: not isinstance(item[1], Ref))
    producer = None if isinstance(constant, Ref) else _producer(uses, x, free_of=("activation", "residual"))
    if producer is None or x.shape != node.result.shape:
        return None
    w, bias = producer.kwargs["w"], producer.kwargs.get("bias")
    if isinstance(w, Ref) or isinstance(bias, Ref) or w.dtype not in (np.float32, np.float64):
        return None
    number = _of_channels(constant, x, producer)
    factor_and_shift = _FOLDED.get(text.replace(x_name, "@").replace(constant_name, "c").replace("@", "x"))
    if number is None or factor_and_shift is None or node.result.value.dtype != w.dtype:
        return None
    with np.errstate(divide="ignore"):
        factor, shift = factor_and_shift(number)
    start = 0.0 if bias is None else bias.numpy().astype(np.float64)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return None
    if (factor == 1).all():
        return producer, {"bias": Tensor.from_numpy((start + shift).astype(w.dtype), w.queue)}
    return producer, _folded(graph, producer, factor, start * factor + shift)


_FOLDED: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    **dict.fromkeys(("x*c", "c*x"), lambda c: (c, np.zeros_like(c))),
    **dict.fromkeys(("x+c", "c+x"), lambda c: (np.ones_like(c), c)),
    "x-c": lambda c: (np.ones_like(c), -c),
    "c-x": lambda c: (-np.ones_like(c), c),
    "x/c": lambda c: (1 / c, np.zeros_like(c)),
}
"""The factor and the shift of a convolution's result ``x`` that a formula with a constant ``c`` stands for."""


def _of_channels(constant: Any, x: Ref, producer: Node) -> np.ndarray | None:
    """A constant beside a view of a convolution's whole result as one number of each channel, in float64; None where it
    is something else."""
    shape = producer.result.value.shape
    axis = 1 if producer.kwargs.get("layout", "nchw") == "nchw" else len(shape) - 1
    if isinstance(constant, int | float):
        return np.full(shape[axis], float(constant))
    wide = (1,) * (len(x.shape) - constant.ndim) + constant.shape
    long_axes = [index for index, size in enumerate(wide) if size > 1]
    if constant.size == 1:
        return np.full(shape[axis], constant.numpy().astype(np.float64).reshape(()))
    # The view's elements lie as the result's, so an axis with the channels' length and stride is theirs.
    is_channels = len(long_axes) == 1 and constant.size == shape[axis] == x.shape[long_axes[0]]
    if not is_channels or math.prod(x.shape[long_axes[0] + 1 :]) != math.prod(shape[axis + 1 :]):
        return None
    return constant.numpy().astype(np.float64).reshape(-1)  # type: ignore[no-any-return]


def _along_results(producer: Node, factor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A factor of each result's channel as it broadcasts along weights of ``shape``.

    Those of a transposed convolution are ``[ic, oc/groups, ...]``: a group's channels meet the group's rows.
    """
    if producer.name != "transposed_convolution":
        return factor.reshape(-1, *[1] * (len(shape) - 1))
    groups, rows = producer.kwargs.get("groups", 1), shape[0]
    each = np.repeat(factor.reshape(groups, -1), rows // groups, axis=0)
    spatial = [1] * (len(shape) - 2)
    channels_last = producer.kwargs.get("layout", "nchw") == "nhwc"
    return each.reshape(rows, *spatial, -1) if channels_last else each.reshape(rows, -1, *spatial)


def _scaled(graph: Graph, w: Tensor, factor: np.ndarray) -> Tensor:
    """Weights times a factor, by products of float64; on a CPU in a thread, while the net is planned."""
    if device_info(w.queue.device).type != "cpu":
        return Tensor.from_numpy((w.numpy() * factor).astype(w.dtype), w.queue)
    scaled = Tensor.empty(w.shape, w.dtype, w.queue)
    # NumPy views the tensor's memory as its dtype, because the buffer interface has no bfloat16, for instance.
    source, target = (np.asarray(tensor).view(w.dtype) for tensor in (w, scaled))
    graph.background.begin(scaled, np.multiply, source, factor, out=target, casting="unsafe")
    return scaled


def _add(graph: Graph, node: Node, uses: dict[Value, int]) -> tuple[Node, dict[str, Any]] | None:
    sides = graph.summands(node)
    # Of two convolutions whose results are added, the later one takes the other's result as its residual.
    for own_side, residual in (sides, sides[::-1]) if sides else ():
        producer = _producer(uses, own_side, free_of=("activation", "residual"))
        if producer is not None:
            residual = replace(residual, shape=producer.result.value.shape)
            return producer, {"residual": residual}
    return None


def _activate(graph: Graph, node: Node, uses: dict[Value, int]) -> tuple[Node, dict[str, Any]] | None:
    producer = _producer(uses, node.kwargs["x"], free_of=("activation",), kinds=(*CONVOLUTIONS, *NORMS))
    return None if producer is None else (producer, {"activation": node.kwargs["activation"]})


_RULES: dict[str, tuple[Rule, ...]] = {
    "batch_norm": (_fold,),
    "apply": (_fold_constant, _add),
    "activate": (_activate,),
}
