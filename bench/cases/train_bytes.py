"""Bytes that a training step moves, and its kernels, counted by inductor's scheduler, without running any.

``python -m bench train_bytes [NET ...] [--batch 64] [--size 224] [--dtype bfloat16] [--device cpu]``

A NET is one of ``torch_zoo``'s or torchvision's. Inductor compiles the forward and the backward graph up to its
scheduler, under autocast and channels last, for five sides: inductor alone, our back end without batch norms in
convolutions, with statistics and norms' gradients there, with what selection chooses for an H200, and with all that
can be there. Each kernel counts the bytes of the buffers that it reads and writes, convolutions apart from all others;
what both gradients of a convolution read counts twice. Kernels of less than 1 MB, whose launch takes longer than they
do, are counted apart. What inductor fuses depends on the device: ``--device h200`` traces on a CPU and lowers for an
H200 by its description, ``--device cuda`` is for a GPU that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

import convdispatch.torch  # noqa: F401 (the operators)
from convdispatch.tools.targets.described import DESCRIBED
from convdispatch.torch.compile import backend as back_end
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.graph.learning.training_norms import FusionJudge
from convdispatch.torch.settings import DEFAULT, policy_of, switches

SIDES = ("inductor", "apart", "gradients", "chosen", "fused")
PRODUCTS = "convolutions and products"
SMALL = 1 << 20
"""The bytes from which on a kernel takes longer than its launch."""


class _Counted(Exception):
    """Ends a step before its first kernel would run."""


def _counting(totals: dict[str, int], move: bool) -> Any:
    """An inner compiler for ``compile_fx`` that adds a graph's bytes to ``totals``; ``move``: to a GPU, before that."""
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode
    from torch._inductor.virtualized import V

    def count(graph: Any, inputs: Any, **options: Any) -> Any:
        fake_mode = torch._dynamo.utils.detect_fake_mode(inputs)
        with V.set_fake_mode(fake_mode), DebugContext():
            inputs = _on_gpu(graph, inputs) if move else inputs
            compile_fx.record_original_output_strides(graph)
            compile_fx._recursive_post_grad_passes(graph, is_inference=False)
            totals[PRODUCTS] += _read_twice(graph)
            lowered = GraphLowering(graph, example_inputs=inputs, is_backward=options.get("is_backward", False))
            with V.set_graph_handler(lowered):
                lowered.run(*inputs)
                lowered._update_scheduler()
                for node in lowered.scheduler.nodes:
                    extern = isinstance(node, ExternKernelSchedulerNode)
                    size = node.get_read_write_buffers_sizes()
                    totals[PRODUCTS if extern else "passes"] += size
                    if size > 0:
                        totals["products" if extern else "small" if size < SMALL else "kernels"] += 1

        def run(_: Any) -> Any:
            raise _Counted

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return count


def _read_twice(graph: Any) -> int:
    """Bytes that both gradients of a convolution read, and products of a tensor with itself: the scheduler counts an
    operator's operands once."""
    ours, aten = torch.ops.convdispatch, torch.ops.aten
    normed = ours.normed_convolution_backward.below_autograd
    size = 0
    for node in graph.graph.nodes:
        mask, operands = [False, False], node.args[:1]
        if node.target is ours.channel_products.below_autograd:
            mask = [node.args[0] is node.args[1]] * 2
        elif node.target in (normed, ours.convolution_backward.below_autograd, aten.convolution_backward.default):
            reads_both = node.target is normed and node.args[5] in (None, node.args[1])
            mask, operands = node.args[-1], node.args[: 1 + reads_both]
        if mask[0] and mask[1]:
            size += sum(each.meta["val"].numel() * each.meta["val"].itemsize for each in operands)
    return size


def _on_gpu(graph: Any, inputs: Any) -> list[Any]:
    """Let a graph's fake tensors and devices be a GPU's, in place; returns the inputs there. Autograd has none without
    CUDA, so graphs are traced on a CPU."""
    gpu = torch.device("cuda:0")

    def moved(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=gpu)
        return gpu if isinstance(each, torch.device) else each

    with torch._dynamo.utils.detect_fake_mode(inputs):
        for node in graph.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map(moved, node.meta["val"])
            if node.op == "call_function":
                node.args, node.kwargs = tree_map(moved, (node.args, node.kwargs))
        return [moved(each) for each in inputs]


@contextlib.contextmanager
def _described() -> Iterator[None]:
    """Let inductor compile for an H200 that is not there."""
    from torch._inductor import config
    from torch._inductor.runtime.hints import DeviceProperties

    described = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
    seen = types.SimpleNamespace(multi_processor_count=132, major=9, minor=0, warp_size=32, gcnArchName="")
    with (
        mock.patch.object(DeviceProperties, "create", return_value=described),
        mock.patch("torch.cuda.get_device_properties", return_value=seen),
        mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        mock.patch("torch.cuda.current_device", return_value=0),
        mock.patch.object(back_end, "device_type", return_value="cpu"),
        mock.patch.object(back_end, "watch_captures"),
        mock.patch("torch._inductor.scheduler.has_triton", return_value=True),
        config.patch(shape_padding=False),  # it is timed on the device
    ):
        yield


def _judge_for_h200(judge: Any, device: torch.device) -> None:
    judge._device, judge._policy = DESCRIBED["h200"], policy_of(DEFAULT, switches(device.type == "cuda"))


def counted(net: Any, side: str, batch: int, size: int, dtype: torch.dtype, device: str) -> dict[str, int]:
    """The bytes of a step of the model that ``net`` makes, by kind of kernel, and the numbers of its products, other
    kernels, and small kernels."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    from convdispatch.torch.graph import inductor

    torch._dynamo.reset()
    totals = dict.fromkeys((PRODUCTS, "passes", "products", "kernels", "small"), 0)
    described, device = device == "h200", "cpu" if device == "h200" else device
    count = _counting(totals, described)

    def backend(graph: Any, inputs: Any) -> Any:
        if side == "inductor":
            return compile_fx(graph, inputs, inner_compile=count)

        def pays(judge: Any, plain: Any, fused: Any, *saved: int) -> bool:
            before = any(problem.norm and problem.direction != "bwd_data" for problem in fused)
            return side == "fused" or (side == "gradients" and not before)

        with (
            mock.patch("torch._inductor.compile_fx.compile_fx_inner", count),
            mock.patch.object(inductor, "prepare_kernels"),
            mock.patch.object(inductor, "available", return_value=True),
            mock.patch.object(FusionJudge, "__init__", _judge_for_h200),
            mock.patch.object(FusionJudge, "pays", FusionJudge.pays if side == "chosen" else pays),
        ):
            return Backend()(graph, inputs)

    with _described() if described else contextlib.nullcontext(), config.patch(force_non_lazy_backward_lowering=True):
        model = net().train().to(device, memory_format=torch.channels_last)
        x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
        try:
            with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
                torch.compile(model, backend=backend)(x).float().sum()
        except _Counted:
            return totals
    raise AssertionError("the graph has run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet50"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    try:
        import torchvision.models as nets
    except ImportError:  # no wheel of it for this PyTorch
        import torch_zoo as nets
    for net in options.nets:
        given = options.batch, options.size, getattr(torch, options.dtype), options.device
        rows = {side: counted(getattr(nets, net), side, *given) for side in SIDES}
        for side, row in rows.items():
            convolutions, passes, products, kernels, small = row.values()
            share = (convolutions + passes) / sum(list(rows["inductor"].values())[:2])
            print(
                f"{net:18} {side:9} {products} convolutions and products {convolutions / 1e9:6.2f} GB, passes "
                f"{passes / 1e9:6.2f} GB in {kernels} kernels and {small} small ones, together {share:.2f} of "
                "inductor's",
                flush=True,
            )


if __name__ == "__main__":
    main()
