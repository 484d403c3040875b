"""Compiles a graph by PyTorch's inductor, except its convolutions, which are calls of convdispatch's operators.

On GPUs that is Triton's code between our kernels, on CPUs C++; where the compiler is missing, graphs run operator by
operator. Nothing is fused twice: our pass takes the epilogues of convolutions first, inductor gets the rest.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from .epilogues import fold_batch_norms, fold_constants, freeze_weights, use_our_operators
from .preparing import prepare_kernels
from .specialised import without_fakes
from .tuning import is_tuned


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
            prepare_kernels(graph, None, constant=False, tuned=tuned)

        def uuid(self) -> Any:
            return get_hash_for_files((__file__, use_our_operators.__code__.co_filename))

    return OurOperators()


def options_of(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's configuration for ``torch.compile``'s mode and options."""
    from torch._inductor import list_mode_options

    patches = dict(list_mode_options(mode)) if mode and mode != "default" else {}
    return patches | {key.replace("-", "_"): value for key, value in options.items()}


def compiled(graph: fx.GraphModule, inputs: Sequence[Any], backend: Any) -> Callable[..., Any]:
    """A graph of Dynamo's, forward and if gradients are needed backward, compiled by inductor with our convolutions."""
    from torch._inductor.compile_fx import compile_fx

    patches = {**backend.patches, "post_grad_custom_pre_pass": _pass(is_tuned(backend.mode))}
    return compile_fx(graph, inputs, config_patches=patches)  # type: ignore[no-any-return]


def with_our_operators(graph: fx.GraphModule, device: torch.device, mode: str | None) -> fx.GraphModule:
    """A graph whose weights are attributes, with batch norms folded and our operators; changes the graph in place."""
    fold_constants(graph)
    fold_batch_norms(graph)
    use_our_operators(graph.graph)
    freeze_weights(graph)
    graph.recompile()
    prepare_kernels(graph.graph, device, constant=True, tuned=is_tuned(mode))
    return graph


def compiled_frozen(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], backend: Any, ours: bool) -> Any:
    """An inference graph whose weights are attributes, compiled by inductor, which packs weights too where that pays;
    with ``ours``, its convolutions are our operators. ``backend`` has the mode and the patches."""
    from torch._inductor.compile_fx import compile_fx

    if ours:
        graph = with_our_operators(graph, inputs[0].device, backend.mode)
    else:
        fold_constants(graph)
        fold_batch_norms(graph)

    def compile_graph() -> Any:
        with torch.no_grad():
            patches = {"fallback_random": True, **backend.patches, "freezing": True}
            return compile_fx(graph, list(inputs), config_patches=patches)

    # Compile in a new thread: during a compiled graph's call PyTorch disables dispatch keys that tracing needs.
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
    graph, _ = without_fakes(graph)
    return make_boxed_func(graph.forward)  # type: ignore[no-any-return]
