"""Batch norms of graphs that learn, as parts of the convolutions before and after them.

A pass over Dynamo's graph, before AOTAutograd splits it. In convolution, batch norm, activation, convolution the first
returns the statistics of its result, and the second reads ``activation(norm(u))`` for its input u, which is neither
written nor saved normalised. A normalised tensor with another reader is computed as before, from the convolution's
statistics; where the convolution widens single pixels, the gradients of both are products of its input's channels, and
its result is not saved. ``FusionJudge`` decides by selection's answers and costs which norms are rewritten.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ....api.errors import ConvDispatchError
from ....api.problem import ConvProblem
from ....calls.framework.fallback import Fallback, cpu_device
from ....device import runtime
from ....device.places.stream import KINDS
from ....device.rates import rates
from ....selection import decision_store
from ....selection.plugins.loader import plugins
from ....selection.solver_query import predicted, serves
from ....selection.visible_problem import operand_bytes, visible_problem
from ...compile import normed_operators
from ...dispatch.routing import settings_in_force
from ...geometry import DTYPES, FORMATS, Geometry, problem_of
from ...settings import DEFAULT, math_of, policy_of, switches
from ..epilogues import activation_text

_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
"""Convolutions in Dynamo's graphs, with their numbers of spatial axes."""
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_DEVICES = ("cpu", *KINDS)
_BATCH_NORM = torch.nn.functional.batch_norm
_BATCH_NORM_SIGNATURE = inspect.signature(_BATCH_NORM)
_READERS = {_BATCH_NORM, *_CONVOLUTIONS, torch.cat, torch.add, operator.add}
"""Functions that change no argument. A tensor that a convolution will normalise has no other readers, because one that
changes it in place would change what the convolution reads."""


@dataclass(eq=False)
class Convolution:
    """A convolution of the graph, and what it computes beside the convolution."""

    node: fx.Node
    geometry: tuple[Any, ...]
    """Stride, padding and dilation, one number an axis, and groups."""
    norm: Norm | None = None
    """The norm of what it reads."""
    join: fx.Node | None = None
    """The relu of what it reads, if the convolution's gradient goes through it together with that of relu's other
    readers."""
    sums: bool = False
    """Whether it returns the statistics of its result."""
    normalised: Norm | None = None
    """The norm of its result, if both are one function, whose gradients do not read what is between them."""
    statistics: list[fx.Node] = field(default_factory=list)
    """Mean and sum of squared distances, once they are written."""

    def problem(self, part: str, **changes: Any) -> ConvProblem:
        """The problem of one part (forward, data, weights), without norm and sums except for ``changes``."""
        x, w, bias = self.operands
        stride, padding, dilation, groups = self.geometry
        value, dtype = _value(self.node), DTYPES[_value(self.node).dtype]
        switched, settings = switches(value.is_cuda), settings_in_force() or DEFAULT
        return problem_of(
            part,
            Geometry(stride, padding, dilation, False, (0,) * len(stride), groups),
            _value(x).shape,
            _value(w).shape,
            None if part == "forward" else value.shape,
            dtype,
            last=_is_channels_last(x) or _is_channels_last(w),
            math=math_of(settings, switched, dtype),
            bias=bias is not None and part == "forward",
        ).replace(**changes)

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        """Input, weight and bias."""
        given = {"bias": None, **dict(zip(_ARGUMENTS, self.node.args)), **self.node.kwargs}
        return given["input"], given["weight"], given["bias"]


@dataclass(eq=False)
class Norm:
    """A batch norm of the graph, and what takes it in."""

    node: fx.Node
    producer: Convolution | None = None
    """The convolution that returns the statistics; None if they are computed from its result, or frozen."""
    activation: fx.Node | None = None
    text: str = "identity"
    """The activation as a problem's ``norm``."""
    consumers: list[Convolution] = field(default_factory=list)
    """The convolutions that take the norm in. If there are none, the normalised tensor is computed."""
    is_prologue: bool = False
    """Whether they normalise what they read; otherwise they take in the norm's gradient alone."""
    activated: fx.Node | None = None
    """What they read if they do not normalise it."""
    statistics: list[fx.Node] = field(default_factory=list)
    numbers: list[fx.Node] = field(default_factory=list)
    """Mean, scale and shift, once they are written."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``torch.nn.functional.batch_norm`` by name, as the graph has them now."""
        bound = _BATCH_NORM_SIGNATURE.bind(*self.node.args, **self.node.kwargs)
        bound.apply_defaults()
        return bound.arguments


class FusionJudge:
    """Decides by selection's answers for one device whether a part of a problem is worth fusing."""

    def __init__(self, device: torch.device) -> None:
        self._device: Any = None
        settings = settings_in_force() or DEFAULT
        self._policy = policy_of(settings, switches(device.type == "cuda"))
        if device.type == "cpu":
            info = runtime.device_info(cpu_device())
        else:
            from ...eager.stream_tensors import device as opencl_device

            try:
                info = runtime.device_info(opencl_device(torch.empty(0, device=device)))
            except Fallback:
                return
        fusing = [solver for solver in plugins().solvers.values() if {"norm", "sums"} & set(solver.fuses)]
        if any(serves(solver, info) for solver in fusing):
            self._device = info

    def pays(
        self, plain: Sequence[ConvProblem], fused: Sequence[ConvProblem], bytes_saved: int, launches_saved: int = 0
    ) -> bool:
        """Whether solvers that fuse everything are chosen for all ``fused`` problems, and these take no longer than the
        ``plain`` ones and so many launches, which move ``bytes_saved``."""
        if self._device is None:
            return False
        choices = []
        for problem in fused:
            choices.append(self._choice(problem))
            if not choices[-1][0]:
                return False
        times = [seconds for _, seconds in (*choices, *map(self._choice, plain)) if seconds is not None]
        if len(times) < len(fused) + len(plain):
            return True  # a vendor's library predicts no time; selection has preferred the solvers that fuse
        with_parts, without = sum(times[: len(fused)]), sum(times[len(fused) :])
        peaks = rates(self._device)
        return bool(with_parts <= without + bytes_saved / peaks.bandwidth + launches_saved * peaks.launch)

    @functools.cache  # noqa: B019 (a judge lives for one graph)
    def _choice(self, problem: ConvProblem) -> tuple[bool, float | None]:
        """Whether the chosen solver fuses the whole problem, and the seconds that it predicts, passes included."""
        try:
            chosen = decision_store.choices(problem, self._device, self._policy).first
        except ConvDispatchError:
            return False, None
        seconds = predicted(chosen.solver, problem, self._device, chosen.config, chosen.math)
        return visible_problem(chosen.solver, problem) == problem, seconds


_Judges = Callable[[torch.device], FusionJudge]


def fuse_training_norms(graph: fx.GraphModule) -> int:
    """Rewrite the graph in place; returns the number of batch norms that were rewritten."""
    nodes = list(graph.graph.nodes)
    if not any(node.target is _BATCH_NORM for node in nodes):
        return 0
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        convolutions = {node: part for node in nodes if (part := _convolution(node)) is not None}
        judge_of = functools.cache(FusionJudge)
        norms = [norm for node in nodes if (norm := _norm(node, convolutions, judge_of)) is not None]
        taken = {norm.activation for norm in norms if norm.consumers}
        joins = [
            part for node in nodes if node not in taken and (part := _join(node, convolutions, judge_of)) is not None
        ]
    parts: dict[fx.Node, Convolution | Norm] = {norm.node: norm for norm in norms}
    parts |= {node: each for node, each in convolutions.items() if each.sums or each.norm or each.join is not None}
    obsolete = {*parts, *(node for part in joins for node in (part.join, part.operands[0]))}
    for norm in norms:
        if norm.consumers:
            last_node = norm.activation or norm.node
            obsolete |= {last_node, *filter(_is_layout, last_node.users)}
    for node, written in ((node, parts[node]) for node in nodes if node in parts):
        with graph.graph.inserting_before(node):
            if isinstance(written, Norm):
                _write_norm(written)
            elif written.normalised is None:
                _write_convolution(written)
    _write_updates(norms)
    for node in reversed(nodes):
        if node in obsolete:
            graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()
    return len(norms)


# What the graph has.


def _value(node: Any) -> Any:
    """The fake tensor of a node's result, whatever its layout."""
    while _is_layout(node):
        node = node.args[0]
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _is_layout(node: Any) -> bool:
    """Whether a node is one of those that ``channels_last`` inserts."""
    return isinstance(node, fx.Node) and node.target == "contiguous" and "memory_format" in node.kwargs


def _is_channels_last(node: Any) -> bool:
    if _is_layout(node):
        return node.kwargs["memory_format"] is not torch.contiguous_format
    value = _value(node)
    form = FORMATS.get(value.ndim)
    return form is not None and value.is_contiguous(memory_format=form) and not value.is_contiguous()


def _is_static(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and all(type(size) is int and size > 0 for size in value.shape)


def _convolution(node: fx.Node) -> Convolution | None:
    """A convolution of Dynamo's graph with known sizes, in a dtype and on a device of ours."""
    axes = _CONVOLUTIONS.get(node.target) if node.op == "call_function" else None  # type: ignore[arg-type]
    if axes is None:
        return None
    given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **dict(zip(_ARGUMENTS, node.args)), **node.kwargs}
    result = _value(node)
    tensors = result, _value(given["input"]), _value(given["weight"])
    if not all(map(_is_static, tensors)) or result.dtype not in DTYPES or result.device.type not in _DEVICES:
        return None
    geometry: list[Any] = []
    for name in ("stride", "padding", "dilation"):
        value = given[name]
        numbers = (value,) if isinstance(value, int) else value
        if isinstance(numbers, str) or not all(type(number) is int for number in numbers):
            return None
        geometry.append(tuple(numbers) * axes if len(numbers) == 1 else tuple(numbers))
    return Convolution(node, (*geometry, given["groups"])) if tensors[1].ndim == axes + 2 else None


def _norm(node: fx.Node, convolutions: dict[fx.Node, Convolution], judge_of: _Judges) -> Norm | None:
    """A batch norm that is to be rewritten; None for other nodes. Marks the convolutions that take part."""
    if node.target is not _BATCH_NORM:
        return None
    norm = Norm(node)
    given, value = norm.arguments, _value(norm.arguments["input"])
    if not _is_static(value) or value.ndim < 2 or _count(value) < 2 or value.dtype not in DTYPES:
        return None
    if value.device.type not in _DEVICES or type(given["training"]) is not bool:
        return None
    pays = judge_of(value.device).pays
    producer = convolutions.get(given["input"])
    if given["training"] and producer is not None and all(map(_only_reads, producer.node.users)):
        taken_in = producer.norm is not None and producer.norm.is_prologue
        before = {"norm": producer.norm.text} if taken_in else {}
        plain, fused = (producer.problem("forward", sums=sums, **before) for sums in (False, True))
        # The pass for the statistics reads the result once, and merges its parts in a second launch.
        if pays([plain], [fused], operand_bytes(plain, "y"), 2):
            norm.producer, producer.sums = producer, True
    consumers = _consumers(norm, convolutions)
    if consumers:
        size = operand_bytes(consumers[0].problem("forward"), "x")
        # Backward, a pass for sums reads the gradient, u and the activation's result, and the one that computes the
        # gradient of u would read the activation's result too. Forward, one reads u and writes what is normalised.
        if pays(*_with_and_without(consumers, norm.text, ("data",)), 4 * size, 1):
            norm.consumers = consumers
            norm.is_prologue = pays(*_with_and_without(consumers, norm.text, ("forward", "weights")), 2 * size, 0)
    elif norm.producer is not None and _is_widening(norm.producer, node):
        forward, data, weights = (norm.producer.problem(part) for part in ("forward", "data", "weights"))
        products = [data.replace(residual=True), weights, weights.replace(oc=weights.ic)]
        products.append(forward.replace(oc=forward.ic, bias=True))
        # Backward, a pass for sums reads the gradient and u, and one reads both and writes the gradient of u. What a
        # convolution normalises as it reads is written once.
        saved = 5 * operand_bytes(forward, "y") - 2 * operand_bytes(forward, "x")
        if pays([data, weights], products, saved, 0):
            norm.producer.normalised = norm
    for each in norm.consumers:
        each.norm = norm
    return norm if norm.consumers or norm.producer is not None else None


def _join(node: fx.Node, convolutions: dict[fx.Node, Convolution], judge_of: _Judges) -> Convolution | None:
    """The convolution whose gradient is added to that of a relu's other readers and goes through the relu, because it
    reads the relu's result first, and others do too: a residual join. None for other nodes."""
    if activation_text(node) != "relu" and node.target not in (torch.relu_, "relu", "relu_"):
        return None
    x = node.args[0]
    if not isinstance(x, fx.Node) or set(x.users) != {node} or x.op == "placeholder" or len(node.users) < 2:
        return None
    order = {each: index for index, each in enumerate(node.graph.nodes)}
    operand = min(node.users, key=order.__getitem__)
    reader = next(iter(operand.users), None) if _is_layout(operand) else operand
    part = convolutions.get(reader) if reader is not None else None
    if part is None or part.norm is not None or part.normalised is not None:
        return None
    if any(_changes(user, node) and user.op != "output" for user in node.users):
        return None
    read = operand if _is_layout(operand) else node
    if part.operands[0] is not read or read in part.operands[1:] or _value(x) is None:
        return None
    if (_is_layout(operand) and len(operand.users) > 1) or _value(x).dtype != _value(part.node).dtype:
        return None
    plain = part.problem("data")
    # The kernel also sums the gradient for norms whose gradients read no result.
    sums = any(each.normalised is not None for each in convolutions.values())
    fused = plain.replace(norm="relu", residual=True, sums=sums)
    # Passes for sums and for a gradient would each read two gradients and relu's result, and now read one gradient.
    if not judge_of(_value(x).device).pays([plain], [fused], 4 * operand_bytes(plain, "x"), 0):
        return None
    part.join = node
    return part


def _with_and_without(
    consumers: Sequence[Convolution], text: str, parts: Sequence[str]
) -> tuple[list[ConvProblem], list[ConvProblem]]:
    """The problems of some parts of convolutions, plain and with a norm."""
    edges = [(each, part) for each in consumers for part in parts]
    plain = [each.problem(part) for each, part in edges]
    return plain, [each.problem(part, norm=text, sums=part == "data") for each, part in edges]


def _is_widening(part: Convolution, norm: fx.Node) -> bool:
    """Whether a convolution of single pixels has at least twice as many channels as its input and the norm as its only
    reader, so that gradients by products of its input's channels cost little."""
    stride, padding, _, groups = part.geometry
    w, between = _value(part.operands[1]), part.node.next
    if set(part.node.users) != {norm} or groups != 1 or w.shape[0] < 2 * w.shape[1] or not _is_static(w):
        return False
    if w.shape[2:].numel() != 1 or any(step != 1 for step in stride) or any(padding):
        return False
    if _value(part.node).dtype.itemsize == 2 and not _is_channels_last(part.operands[0]):
        return False  # ``channel_products`` multiplies rows of channels
    while between is not norm:  # the convolution moves behind these nodes, which must not change what it reads
        if any(operand in between.all_input_nodes for operand in part.node.all_input_nodes):
            return False
        between = between.next
    return True


def _only_reads(node: fx.Node) -> bool:
    return node.target in _READERS or _is_layout(node)


def _changes(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a node may change an operand: a sum in place changes its first one."""
    return not _only_reads(node) and (node.target is not operator.iadd or node.args[0] is operand)


def _consumers(norm: Norm, convolutions: dict[fx.Node, Convolution]) -> list[Convolution]:
    """The convolutions that are all readers of a norm's result, with or without an activation between; else none.

    Sets the norm's activation.
    """
    x = norm.arguments["input"]
    if not all(map(_only_reads, x.users)):
        return []
    last_node = norm.node
    users = list(norm.node.users)
    if len(users) == 1 and (text := activation_text(users[0])) is not None:
        norm.activation, norm.text = users[0], text
        last_node = users[0]
        users = list(last_node.users)
    readers = [(user, last_node) for user in users if not _is_layout(user)]
    readers += [(reader, layout) for layout in users if _is_layout(layout) for reader in layout.users]
    consumers = [convolutions.get(reader) for reader, _ in readers]
    for (reader, operand), consumer in zip(readers, consumers, strict=True):
        # The norm is of the convolution's input alone, in the type in which the convolution computes.
        if consumer is None or consumer.operands[0] is not operand or operand in consumer.operands[1:]:
            return []
        if _value(reader).dtype != _value(x).dtype:
            return []
    return [each for each in consumers if each is not None]


# What is written instead.


def _write_convolution(part: Convolution) -> None:
    graph, (read, w, bias), norm = part.node.graph, part.operands, part.norm
    x, activated = read, None
    arguments: tuple[Any, Any] = (None, None)
    if norm is not None:
        x, activated, arguments = norm.arguments["input"], norm.activated, (norm.numbers, norm.text)
    elif part.join is not None:
        x = part.join.args[0]
        activated, arguments = graph.call_function(normed_operators.rectified, (x,)), (None, "relu")
    if x is not read and _is_layout(read):
        x, activated = (each and graph.call_method("contiguous", (each,), dict(read.kwargs)) for each in (x, activated))
    geometry = (list(each) if isinstance(each, tuple) else each for each in part.geometry)
    operands = (x, w, bias, activated)
    if part.normalised is not None:
        affine = (part.normalised.arguments[name] for name in ("weight", "bias", "eps"))
        y = graph.call_function(normed_operators.normalised_pointwise, (operands, *arguments, *affine, *geometry))
    else:
        y = graph.call_function(normed_operators.convolve, (operands, *arguments, part.sums, *geometry))
    results = [y]
    if part.sums or part.join is not None:
        count = 1 + 2 * part.sums + (part.join is not None)
        results = [graph.call_function(operator.getitem, (y, number)) for number in range(count)]
    part.statistics = results[1:3] if part.sums else []
    replaced = part.node if part.normalised is None else part.normalised.node
    results[0].meta = dict(replaced.meta)
    replaced.replace_all_uses_with(results[0])
    if part.join is not None:
        results[-1].meta = dict(part.join.meta)
        part.join.replace_all_uses_with(results[-1], delete_user_cb=lambda user: user not in (part.node, read))


def _write_norm(norm: Norm) -> None:
    graph, given = norm.node.graph, norm.arguments
    x, value = given["input"], _value(given["input"])
    running, rest = (given["running_mean"], given["running_var"]), (given["weight"], given["bias"], given["eps"])
    if norm.producer is not None and norm.producer.normalised is norm:
        _write_convolution(norm.producer)
        norm.statistics = norm.producer.statistics
        return
    if given["training"]:
        if norm.producer is not None:
            norm.statistics = norm.producer.statistics
        else:
            both = graph.call_function(normed_operators.statistics, (x,))
            norm.statistics = [graph.call_function(operator.getitem, (both, number)) for number in range(2)]
        numbers = graph.call_function(normed_operators.norm_numbers, (*norm.statistics, _count(value), *rest))
    else:
        numbers = graph.call_function(normed_operators.norm_numbers, (*running, 1, *rest))
    norm.numbers = [graph.call_function(operator.getitem, (numbers, number)) for number in range(3)]
    if norm.is_prologue:
        return
    if norm.consumers:
        norm.activated = graph.call_function(normed_operators.activated, (x, norm.numbers, norm.text))
    else:
        result = graph.call_function(normed_operators.normalised, (x, *norm.numbers))
        result.meta = dict(norm.node.meta)
        norm.node.replace_all_uses_with(result)


def _write_updates(norms: Sequence[Norm]) -> None:
    """Update running statistics, all of one momentum at once. Those of a module that the graph calls again, or whose
    buffers something else reads, are updated where the norm is."""
    groups: dict[Any, list[Norm]] = {}
    for norm in norms:
        given = norm.arguments
        if given["training"] and given["running_mean"] is not None:
            alone = all(len(given[name].users) == 1 for name in ("running_mean", "running_var"))
            groups.setdefault(given["momentum"] if alone else norm, []).append(norm)
    for group in groups.values():
        buffers, values = [], []
        for norm in group:
            given = norm.arguments
            buffers += [given["running_mean"], given["running_var"]]
            values += [(norm.statistics[0], 1), (norm.statistics[1], _count(_value(given["input"])) - 1)]
        graph, last_node = group[-1].node.graph, group[-1].node
        with graph.inserting_before(last_node):
            graph.call_function(normed_operators.update_running, (buffers, values, given["momentum"]))


def _count(value: torch.Tensor) -> int:
    """Elements of a channel."""
    return value.numel() // value.shape[1]
