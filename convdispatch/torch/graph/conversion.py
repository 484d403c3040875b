"""convert: a model's layers by ours, in place; or, with ``fuse``, the model as torch.fx traces it, fused."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from ...api.errors import ConvDispatchWarning, InvalidArgument
from ...device.garbage import collection_put_off
from ..compile import pooling
from ..epilogue_chains import Chain, chains, has_hooks
from ..modules import FUSED, swap
from .asked_parts import NONE, Uses, uses_of
from .forms import FusedModel
from .recording import Recorded, record
from .signature import Arguments
from .tracing import trace

__all__ = ["Fusion", "convert", "fusion"]

_WHY = "_convdispatch_untraced"
_KEPT = frozenset(dir(FusedModel))


@dataclass(frozen=True)
class Fusion:
    """What became of a fused model's operations."""

    fused: tuple[str, ...] = ()
    """For each convolution of a traced part, the names of what it computes: ``"conv1 + bn1 + relu"``."""
    left: dict[str, str] = field(default_factory=dict)
    """Modules that torch.fx cannot trace, and why; their children were tried one by one. They are recorded at calls."""
    forms: dict[str, str] = field(default_factory=dict)
    """Inputs' shapes for which the model was called, and the form that was built, or why none was."""

    def __str__(self) -> str:
        lines = [f"{len(self.fused)} convolutions", *(f"  {each}" for each in self.fused)]
        lines += [f"not traced: {name or 'the model'}: {why}" for name, why in self.left.items()]
        return "\n".join([*lines, *(f"form for {shape}: {what}" for shape, what in self.forms.items())])


def fusion(model: nn.Module) -> Fusion:
    """What ``convert(model, fuse=True)`` did, of its answer or of a model that holds it."""
    fused: list[str] = []
    left: dict[str, str] = {}
    forms: dict[str, str] = {}
    for name, module in model.named_modules():
        before = f"{name}." if name else ""
        if isinstance(module, FusedModel):
            fused += [" + ".join(before + each for each in words) for words in module.meta.get("fused", ())]
            forms |= {f"{name or 'the model'}, {shape}": what for shape, what in module.forms.found().items()}
        elif _WHY in module.__dict__:
            left[name] = module.__dict__[_WHY]
        if isinstance(module, Recorded):
            forms |= {f"{name or 'the model'}, {shape}": what for shape, what in module.records.found().items()}
    return Fusion(tuple(fused), left, forms)


def convert(model: nn.Module, *, fuse: bool | str = False) -> nn.Module:
    """Replace ``nn.Conv1d`` to ``nn.ConvTranspose3d`` in ``model`` by layers of the same parameters that call
    ``torch.ops.convdispatch.convolution``; changes the model, and answers it.

    Layers of classes derived from these are left: what they changed would be lost.

    With ``fuse="training"`` besides, in each ``nn.Sequential`` a convolution takes in the activation that follows it,
    in one pass that has gradients: ReLU, ReLU6, Hardtanh, LeakyReLU, ELU, Sigmoid and Tanh. Layers, parameters and
    names stay what they are; where one of a pair has hooks, both run one by one.

    With ``fuse=True`` the answer is another model, for inference, with weights of its own. By ``torch.fx``, batch norms
    are folded into the weights of the convolution before them (in float64), and a convolution takes in the sum with
    another tensor and the activation that follow it, where nobody else reads what lies between: ReLU, ReLU6, Hardtanh,
    LeakyReLU, ELU, Sigmoid, SiLU and Tanh. The fused weights do not learn. What
    ``torch.fx`` cannot trace keeps its code: its children are tried one by one, and it is recorded at its calls without
    gradients, by shapes and all other arguments (``recording``); ``fusion(model)`` says so. An
    exported program (``torch.export``), or its module, may be given too; one that PT2E quantized runs in integers.

    On the CPU, outside of compilers and where nothing asks for gradients, a fused model runs as one inference form for
    each set of input shapes, made at its first call; on a GPU as a CUDA graph from the third call on: see
    ``docs/use/pytorch.md``.

    Raises InvalidArgument where ``model`` is to be fused in training mode: batch norms would use the batch's own
    statistics, so call ``model.eval()`` first; and for another ``fuse``.
    """
    if not isinstance(fuse, bool) and fuse != "training":
        raise InvalidArgument(f"fuse must be False, True or 'training', got {fuse!r}")
    if fuse is True:
        with collection_put_off():
            return _fused_model(model)
    for module in list(model.modules()):
        swap(module, pairs=fuse == "training")
    return model


def _fused_model(model: Any) -> nn.Module:
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"convert takes a torch.nn.Module, or with fuse=True an ExportedProgram, got {type(model).__name__}"
        )
    if _is_exported(model):
        with torch.inference_mode(False), torch.no_grad():
            return _of_exported(copy.deepcopy(model))
    if getattr(model, "training", False):  # a frozen ScriptModule has no such attribute
        raise InvalidArgument(
            "convert(fuse=True) takes a model in eval mode, for batch norms to be folded: call model.eval() first, or "
            "convert(model) to keep them"
        )
    with torch.inference_mode(False), torch.no_grad():
        made = _fused(_copied(model))
    if _WHY in made.__dict__ and not isinstance(made, Recorded):
        record(made)  # as Keras's, whose layers are no modules of PyTorch's
    if not any(isinstance(each, FusedModel | Recorded) for each in made.modules()):
        why = "; ".join(f"{name or 'the model'}: {each}" for name, each in fusion(made).left.items())
        why = why or "it holds no layer of PyTorch's convolutions, of its very classes"
        warnings.warn(f"nothing of the model could be fused. {why}", ConvDispatchWarning, stacklevel=3)
    return made


def _copied(model: nn.Module) -> nn.Module:
    """A model's copy, also where its last call left tensors with gradients in it, as ``weight_norm``'s and pruning's
    weights, which PyTorch refuses to copy."""
    held = (value for part in model.modules() for value in vars(part).values())
    computed = (value for value in held if isinstance(value, torch.Tensor) and not value.is_leaf)
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})


def _is_exported(model: nn.Module) -> bool:
    """Whether a graph's operators are aten's own: they say themselves what is done as in training."""
    return isinstance(model, fx.GraphModule) and any(
        isinstance(node.target, torch._ops.OpOverload) for node in model.graph.nodes
    )


def _of_exported(model: Any) -> FusedModel:
    """A graph of aten's operators as it is: forms fuse what they find in it."""
    for node in list(model.graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":  # a form is made for each set of shapes
            model.graph.erase_node(node)
    made = FusedModel(model, model.graph, type(model).__name__)
    for each in made.modules():
        each.training = False
    convolutions = [node.name for node in made.graph.nodes if "aten.conv" in str(node.target)]
    made.meta["fused"] = [(name,) for name in convolutions]
    return made


def _fused(module: nn.Module, name: str = "", uses: Uses = NONE) -> nn.Module:
    """A traced form of a module, or itself with such children; ``uses`` is what the code of what holds it does."""
    if type(module) in FUSED and not has_hooks(module):
        return _layer(module, None, None)
    why = _untraceable(module)
    if why is None and (used := uses.of(module, name, _KEPT)):
        why = f"what holds it uses its {', '.join(sorted(used))}"
    if why is None:
        try:
            return _with_arguments(module)
        except Exception as error:  # whatever a model's own code raises when it gets no tensors
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if isinstance(module, torch.jit.ScriptModule):
        module.__dict__[_WHY] = why
        return module
    uses = uses_of(module, uses)
    for name, child in module._modules.items():
        if child is not None and _holds_layers(child):
            module._modules[name] = _fused(child, name, uses)
    if not _of_pytorch(module):
        module.__dict__[_WHY] = why
    if _holds_layers(module) and (not _of_pytorch(module) or isinstance(module, nn.Sequential)):
        record(module)
    swap(module)
    return module


def _holds_layers(module: nn.Module) -> bool:
    return any("Conv" in type(each).__name__ or isinstance(each, _ConvNd) for each in module.modules())


def _of_pytorch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn")


def _untraceable(module: nn.Module) -> str | None:
    """What torch.fx would get wrong without a word, or is not asked to look into."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is a ScriptModule"
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return "a list of modules has no forward"
    if has_hooks(module):
        return "it has hooks"
    if _of_pytorch(module) and not isinstance(module, nn.Sequential):
        return "it is one of PyTorch's own layers"
    return None


def _with_arguments(module: nn.Module) -> FusedModel:
    arguments = Arguments(module, _of_layers)
    made = _rewritten(module, trace(module, arguments.defaults), arguments.layers)
    made.meta["attributes"] = _attributes(module)
    if arguments.defaults:
        for conv, _, layer in arguments.layers:  # nothing reads the weights from before
            conv._parameters = layer._parameters
        made.meta |= {"arguments": arguments, "unused": _unused(module, made, arguments.layers)}
        made.hold_unused()
    return made


def _unused(root: nn.Module, made: FusedModel, layers: list[tuple[Any, Any, Any]]) -> dict[str, nn.Module]:
    """Parts that only other arguments ask for, with their own weights; the fused model holds them as its own."""
    found, held = {}, dict(made.named_modules())
    known = {id(part) for layer in layers for part in layer} | set(map(id, held.values()))
    for name, part in root.named_modules():
        if id(part) not in known and name not in held and (part._parameters or part._buffers):
            found[name] = part.requires_grad_(False) if swap(part) else part
    return found


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers, texts and the like that a model may read of this part: attributes, its class's, and properties."""
    kinds = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.nn.")]
    found = {name: value for kind in reversed(kinds) for name, value in vars(kind).items()} | vars(module)
    found = {name: value for name, value in found.items() if name[:2] != "__" and not isinstance(value, list)}
    for name, value in found.items():
        if isinstance(value, property):
            with contextlib.suppress(Exception):  # whatever its code raises: then nobody reads it
                found[name] = getattr(module, name)
    return {name: value for name, value in found.items() if _simple(value)}


def _simple(value: Any) -> bool:
    """Whether an attribute is a number, a text or the like, or a tuple or a property's new list of such."""
    if isinstance(value, tuple | list):
        return all(map(_simple, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def _of_layers(
    root: nn.Module,
    concrete: dict[str, Any],
    layers: list[tuple[Any, Any, Any]],
    tensors: dict[str, torch.Tensor] | None = None,
) -> FusedModel:
    for _, norm, layer in layers:  # the model may have got another type since: what was folded is still told by it
        if norm is not None:
            norm.to(layer.weight.dtype)
    return _rewritten(root, trace(root, concrete, tensors), layers, of_these=True)


def _rewritten(
    root: nn.Module, graph: fx.Graph, layers: list[tuple[Any, Any, Any]], of_these: bool = False
) -> FusedModel:
    """The graph with its chains as layers; raises ValueError where there is none.

    Layers that are made are added to ``layers``; with ``of_these`` none is made: those serve, other convolutions stay,
    and ValueError is raised where one of those would have to take in another batch norm.
    """
    modules = dict(root.named_modules(remove_duplicate=False))
    attributes: dict[str, Any] = {}
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    words = []
    known = {id(conv) for conv, _, _ in layers}
    for chain in list(chains(graph, modules, FUSED)):
        name = str(chain.convolution.target)
        if of_these and id(modules[name]) not in known:
            continue
        if calls[name] > 1:  # a shared layer: each call has its own batch norm
            number = next(n for n in range(len(calls) + 1) if f"{name}_{n}" not in {*attributes, *modules})
            name = f"{name}_{number}"
        conv = modules[str(chain.convolution.target)]
        if of_these:
            attributes[name] = _again(layers, conv, chain.batch_norm, chain.activation)
        else:
            attributes[name] = _layer(conv, chain.batch_norm, chain.activation)
            layers.append((conv, chain.batch_norm, attributes[name]))
        words.append(chain.words)
        _replace(graph, chain, name)
    pooling.place(graph, modules, attributes)
    graph.lint()
    for node in graph.nodes:
        if node.op == "call_module" and node.target not in attributes:
            inner = modules[str(node.target)]
            attributes[str(node.target)] = _fused(inner) if _holds_layers(inner) and not of_these else inner
        elif node.op == "get_attr":
            attributes[str(node.target)] = _attribute(root, str(node.target))
    if not words and not any(isinstance(each, FusedModel) for each in attributes.values()):
        raise ValueError("it holds no convolution that can be fused")
    made = FusedModel(attributes, graph, type(root).__name__)
    for each in made.modules():
        if each is made or type(each) is nn.Module:  # what holds layers
            each.training = False
    made.meta["fused"] = words[::-1]
    return made


def _replace(graph: fx.Graph, chain: Chain, name: str) -> None:
    given = [*chain.convolution.args, *chain.convolution.kwargs.values()]
    given += [] if chain.residual is None else [chain.residual]
    with graph.inserting_before(chain.last):
        made = graph.call_module(name, tuple(given))
    chain.last.replace_all_uses_with(made)
    for node in reversed([chain.convolution, *chain.rest]):
        graph.erase_node(node)


def _attribute(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part)
    return root


def _again(layers: list[tuple[Any, Any, Any]], conv: Any, norm: Any, activation: str | None) -> nn.Module:
    """A fused layer with the weights of one that is. Raises ValueError where no convolution took in this batch norm."""
    for each, its_norm, layer in layers:
        if each is conv and its_norm is norm:
            made = copy.copy(layer)  # the same parameters
            made.takes_in(activation)
            return made  # type: ignore[no-any-return]
    raise ValueError("a batch norm that was folded would stay, or another be folded")


def _along_results(conv: Any, factor: torch.Tensor) -> torch.Tensor:
    """A factor of each result's channel as it broadcasts along the weights; transposed: ``[ic, oc/groups, ...]``."""
    spatial = [1] * (conv.weight.ndim - 2)
    if not conv.transposed:
        return factor.reshape(-1, 1, *spatial)
    each = factor.reshape(conv.groups, -1).repeat_interleave(conv.in_channels // conv.groups, 0)
    return each.reshape(conv.in_channels, -1, *spatial)


def _layer(conv: Any, norm: Any, activation: str | None) -> nn.Module:
    """A fused layer: the convolution's, with a batch norm's factors in its weights, worked out in float64."""
    made = copy.copy(conv)
    made.__class__ = FUSED[type(conv)]
    weight, bias = conv.weight.detach(), None if conv.bias is None else conv.bias.detach()
    if norm is not None:
        factor = 1 / torch.sqrt(norm.running_var.double() + norm.eps)
        factor = factor if norm.weight is None else factor * norm.weight.double()
        shift = -norm.running_mean.double() if bias is None else bias.double() - norm.running_mean.double()
        shift = shift * factor if norm.bias is None else shift * factor + norm.bias.double()
        weight = (weight.double() * _along_results(conv, factor)).to(weight.dtype)
        bias = shift.to(weight.dtype)
    made._parameters = {
        "weight": nn.Parameter(weight, requires_grad=False),
        "bias": None if bias is None else nn.Parameter(bias, requires_grad=False),
    }
    made.takes_in(activation)
    made.training = False
    return made  # type: ignore[no-any-return]
