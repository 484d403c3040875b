"""Compiles a graph by PyTorch's inductor, except its convolutions, which are calls of convdispatch's operators.

On GPUs that is Triton's code between our kernels, on CPUs C++; where the compiler is missing, graphs run operator by
operator. Nothing is fused twice: our pass takes the epilogues of convolutions first, inductor gets the rest.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from ...device import background
from ..compile import fused_operator, normed_operators, operators
from ..dispatch import engine
from ..dispatch.routing import settings_in_force
from ..geometry import PLAIN, whole
from ..settings import DEFAULT
from ..warmup import compiled_side_by_side
from ..weights import promise
from .channels_last import lay_channels_last
from .epilogues import fold_batch_norms, freeze_weights, use_our_operators
from .learning.small_kernels import join_small_kernels
from .specialised import without_fakes
from .tuning import is_tuned, tune


@functools.cache
def available(device: str) -> bool:
    """Whether inductor can compile for a device: "cpu" needs a C++ compiler, a device with streams Triton."""
    if device != "cpu":
        return importlib.util.find_spec("triton") is not None
    named = os.environ.get("CXX", "").split(" ")[0]
    return any(shutil.which(each) for each in (named, "g++", "c++", "clang++") if each)


def _pass(tuned: bool) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class OurOperators(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            use_our_operators(graph)
            normed_operators.sum_in_kernels(graph)
            join_small_kernels(graph)
            prepare_kernels(graph, None, constant=False, tuned=tuned)
            operators.leave_autograd(graph)

        def uuid(self) -> Any:
            passes = use_our_operators, join_small_kernels, normed_operators.sum_in_kernels
            return get_hash_for_files((__file__, *(each.__code__.co_filename for each in passes)))

    return OurOperators()


def options_of(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's configuration for ``torch.compile``'s mode and options."""
    from torch._inductor import list_mode_options

    patches = dict(list_mode_options(mode)) if mode and mode != "default" else {}
    return patches | {key.replace("-", "_"): value for key, value in options.items()}


def compiled(graph: fx.GraphModule, inputs: Sequence[Any], backend: Any) -> Callable[..., Any]:
    """A graph of Dynamo's, forward and if gradients are needed backward, compiled by inductor with our convolutions."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    patches = {**backend.patches, "post_grad_custom_pre_pass": _pass(is_tuned(backend.mode))}
    decompositions = None
    on_cpu = all(each.is_cpu for each in inputs if isinstance(each, torch.Tensor))
    if not on_cpu:
        # Inductor's kernel for a maximum's gradient writes each value once, in a fixed order. The decomposition adds
        # values into zeros in float32, which moves four times the bytes; on CPUs it takes three quarters of the time.
        with config.patch(backend.patches):
            decompositions = dict(select_decomp_table())
        decompositions.pop(torch.ops.aten.max_pool2d_with_indices_backward.default, None)
    return compile_fx(  # type: ignore[no-any-return]
        graph, inputs, inner_compile=_compiled_beside_kernels, config_patches=patches, decompositions=decompositions
    )


def _compiled_beside_kernels(graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """As inductor's own inner compiler; its code and our kernels are compiled side by side."""
    from torch._inductor import compile_fx

    with kernels_beside():
        return compile_fx.compile_fx_inner(graph, inputs, **options)


def with_our_operators(
    graph: fx.GraphModule, device: torch.device, mode: str | None, compiled: bool = False
) -> fx.GraphModule:
    """A graph whose weights are attributes, with batch norms folded and our operators; changes the graph in place.
    ``compiled``: inductor will compile it, which fuses copies to another order of memory."""
    _fold(graph)
    use_our_operators(graph.graph)
    if compiled and device.type != "cpu":
        lay_channels_last(graph, device)
    freeze_weights(graph)
    prepare_kernels(graph.graph, device, constant=True, tuned=is_tuned(mode))
    operators.leave_autograd(graph.graph)
    graph.recompile()
    return graph


def _fold(graph: fx.GraphModule) -> None:
    """Compute what depends on attributes alone, as normalised or converted weights, and fold batch norms."""
    from torch._inductor.constant_folding import constant_fold

    with torch.no_grad():
        constant_fold(graph)
        fold_batch_norms(graph)


def compiled_frozen(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], backend: Any, ours: bool) -> Any:
    """An inference graph whose weights are attributes, compiled by inductor, which packs weights too where that pays;
    with ``ours``, its convolutions are our operators. ``backend`` has the mode and the patches."""
    if backend.patches.get("triton.cudagraphs"):
        # The module keeps CUDA graphs by thread; PyTorch 2.11 sets up that thread alone which imports it: the caller's.
        from torch._inductor import cudagraph_trees  # noqa: F401 (imported for that alone)
    with kernels_beside():
        if ours:
            graph = with_our_operators(graph, inputs[0].device, backend.mode, compiled=True)
        else:
            _fold(graph)
        return _compiled_aside(graph, inputs, {**backend.patches, "freezing": True})


def compiled_for_any_weights(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], backend: Any, ours: bool) -> Any:
    """As ``compiled_frozen``, for a graph whose weights are among its inputs."""
    patches = backend.patches | ({"post_grad_custom_pre_pass": _pass(is_tuned(backend.mode))} if ours else {})
    return _compiled_aside(graph, inputs, patches)


def _compiled_aside(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], patches: Mapping[str, Any]) -> Any:
    """A graph without gradients compiled by inductor in a new thread: during a compiled graph's call PyTorch disables
    dispatch keys that tracing needs."""
    from torch._inductor.compile_fx import compile_fx

    def compile_graph() -> Any:
        with torch.no_grad(), kernels_beside():
            return compile_fx(graph, list(inputs), config_patches={"fallback_random": True, **patches})

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(compile_graph).result()


def operator_by_operator_compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """The compiler passed to AOTAutograd where inductor is not available."""
    return operator_by_operator(graph)


def operator_by_operator(graph: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """A boxed function that runs a graph's operators one by one, with convdispatch's convolutions."""
    from torch._functorch.aot_autograd import make_boxed_func

    graph = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    use_our_operators(graph.graph)
    operators.leave_autograd(graph.graph)
    graph, _ = without_fakes(graph)
    return make_boxed_func(graph.forward)  # type: ignore[no-any-return]


_beside = threading.local()


@contextlib.contextmanager
def kernels_beside() -> Iterator[None]:
    """Inside the block ``prepare_kernels`` returns at once, and its work goes on in a thread beside the caller's. The
    block ends when that is done; after an interrupt it goes on in vain."""
    outer, begun = getattr(_beside, "begun", None), list[Future[None]]()
    _beside.begun = begun
    try:
        yield
    finally:
        _beside.begun = outer
    for work in begun:
        work.result()


def _begin(work: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised at the end of the block
            done.set_exception(error)
        else:
            done.set_result(None)

    background.start(functools.partial(contextvars.copy_context().run, run), "convdispatch-graph")
    return done


def prepare_kernels(graph: fx.Graph, device: torch.device | None, constant: bool, tuned: bool = False) -> None:
    """Plan every convolution of a graph with our operators. Convolutions of symbolic sizes are planned at their call.

    ``device`` is where the graph runs, None where its fake tensors say so; ``constant`` says whether the weights are
    frozen parameters, as in a graph for inference. ``tuned``: each problem is measured, and planned by what was found.

    Whoever compiles a graph waits for its kernels anyway; a CUDA graph that is captured before they are there would
    keep PyTorch's for good. Inside ``kernels_beside`` the kernels of a graph that is not ``tuned`` are there at the
    end of that block.
    """
    tasks = [task for node in graph.nodes for task in _tasks(node, device, constant)]
    begun = None if tuned else getattr(_beside, "begun", None)
    if tasks and begun is not None:
        begun.append(_begin(functools.partial(_prepare, tasks)))
    elif tasks:
        _prepare(tasks, tuned)


def _prepare(tasks: Sequence[Any], tuned: bool = False) -> None:
    device = tasks[0].keywords["device"]
    real_tensors = torch._subclasses.fake_tensor.unset_fake_temporarily()
    with real_tensors, torch.no_grad(), compiled_side_by_side(tasks, device):
        for _ in range(1 + tuned):
            planned = []
            for task in tasks:
                with contextlib.suppress(Exception):  # PyTorch computes this problem; the call reports why
                    planned.append(task())
            ours = [call for call in planned if call.prepared is not None]
            if tuned and ours:
                tune([call.problem for call in ours], ours[0].device)


def _tasks(node: fx.Node, device: torch.device | None, constant: bool) -> Iterator[Any]:
    """Tasks that plan a node's problems: none for a node that is no convolution of convdispatch, or has symbolic
    sizes."""
    if node.target is fused_operator.fused_convolution:
        x, w, bias, residual, activation, *geometry = node.args
        parts = (activation, residual is not None, None, False)
        yield from _task(device, "forward", whole(*geometry), (x, w, None, bias), constant, parts)
    elif node.target is operators.convolution:
        x, w, bias, *geometry_arguments = node.args
        yield from _task(device, "forward", tuple(geometry_arguments), (x, w, None, bias), constant, PLAIN)
    elif node.target is normed_operators.normed_convolution:
        x, w, bias, _, norm, sums, *geometry = node.args
        yield from _task(device, "forward", whole(*geometry), (x, w, None, bias), constant, (None, False, norm, sums))
    elif node.target is normed_operators.normed_convolution_backward:
        grad, x, w, _, residual, activated, norm, *geometry, mask = node.args
        if mask[0]:
            parts = (None, residual is not None, norm, mask[2])
            yield from _task(device, "data", whole(*geometry), (x, w, grad, None), False, parts)
        if mask[1]:
            read, norm = (x, norm) if activated is None else (activated, None)
            parts = (None, False, norm, False)
            yield from _task(device, "weights", whole(*geometry), (read, w, grad, None), False, parts)
    elif node.target is operators.convolution_backward:
        grad, x, w, _, *geometry_arguments, mask = node.args
        for part, is_requested in (("data", mask[0]), ("weights", mask[1])):
            if is_requested:
                yield from _task(device, part, tuple(geometry_arguments), (x, w, grad, None), False, PLAIN)


def _task(
    device: torch.device | None, part: str, geometry: Any, operands: Any, constant: bool, epilogue: Any
) -> Iterator[Any]:
    values = [each.meta.get("val") if isinstance(each, fx.Node) else each for each in operands]
    for value in values:
        if value is not None and not isinstance(value, torch.Tensor):
            return
        if value is not None and any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride())):
            return
    yield functools.partial(_plan, part, geometry, values, constant, epilogue, device=device or values[0].device)


def _plan(part: str, geometry: Any, values: Any, constant: bool, epilogue: Any, device: torch.device) -> Any:
    x, w, grad, bias = (
        None if v is None else torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=device) for v in values
    )
    # Planning reads no values, and problems that are planned side by side would hold gigabytes beside what the forward
    # pass saved. Constant weights are looked at.
    for tensor in (x, grad):
        if tensor is not None:
            tensor.untyped_storage().resize_(0)
    if constant:
        w = torch.nn.Parameter(w, requires_grad=False)
        constant = promise(w, fused=True) is not None
    return engine.cached_call(part, geometry, (x, w, grad, bias), constant, settings_in_force() or DEFAULT, epilogue)
