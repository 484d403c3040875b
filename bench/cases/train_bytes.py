"""Bytes that a training step moves, counted from inductor's kernels, without running any.

``python -m bench train_bytes [NET ...] [--batch 64] [--size 224] [--dtype bfloat16] [--device cpu]``

A NET is one of ``torch_zoo``'s or torchvision's. Inductor compiles the forward and the backward graph up to its
scheduler, under autocast and channels last, for four sides: inductor alone, our back end without batch norms in
convolutions, with statistics and norms' gradients there, and with all that can be there. Each kernel counts the bytes
of the buffers that it reads and writes, convolutions apart from all others; what both gradients of a convolution read
counts twice. What inductor fuses depends on the device, so a GPU's count is that of ``--device cuda``.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest import mock

import torch

import convdispatch.torch  # noqa: F401 (the operators)
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.graph.learning.training_norms import FusionJudge

SIDES = ("inductor", "apart", "gradients", "fused")
PRODUCTS = "convolutions and products"


class _Counted(Exception):
    """Ends a step before its first kernel would run."""


def _counting(totals: dict[str, int]) -> Any:
    """An inner compiler for ``compile_fx`` that adds a graph's bytes to ``totals``."""
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode
    from torch._inductor.virtualized import V

    def count(graph: Any, inputs: Any, **options: Any) -> Any:
        fake_mode = torch._dynamo.utils.detect_fake_mode(inputs)
        with V.set_fake_mode(fake_mode), DebugContext():
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
                    totals["kernels"] += not extern and size > 0

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
            mask, operands = node.args[-1], node.args[: 2 if node.target is normed else 1]
        if mask[0] and mask[1]:
            size += sum(each.meta["val"].numel() * each.meta["val"].itemsize for each in operands)
    return size


def counted(net: str, side: str, batch: int, size: int, dtype: torch.dtype, device: str) -> dict[str, int]:
    """The bytes of one step by kind of kernel, and the number of kernels that are no convolutions or products."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    from convdispatch.torch.graph import inductor

    try:
        import torchvision.models as nets
    except ImportError:  # no wheel of it for this PyTorch
        import torch_zoo as nets
    torch._dynamo.reset()
    totals = dict.fromkeys((PRODUCTS, "passes", "kernels"), 0)
    count = _counting(totals)

    def backend(graph: Any, inputs: Any) -> Any:
        if side == "inductor":
            return compile_fx(graph, inputs, inner_compile=count)

        # compile_fx calls itself by name where there are patches, then with an inner compiler.
        def ours(graph: Any, inputs: Any, **options: Any) -> Any:
            return compile_fx(graph, inputs, **{"inner_compile": count, **options})

        def pays(judge: Any, plain: Any, fused: Any, *saved: int) -> bool:
            before = any(problem.norm and problem.direction != "bwd_data" for problem in fused)
            return side == "fused" or (side == "gradients" and not before)

        with (
            mock.patch("torch._inductor.compile_fx.compile_fx", ours),
            mock.patch.object(inductor, "prepare_kernels"),
            mock.patch.object(FusionJudge, "pays", pays),
        ):
            return Backend()(graph, inputs)

    model = getattr(nets, net)().train().to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    with config.patch(force_non_lazy_backward_lowering=True), torch.autocast(device, dtype):
        try:
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
    for net in options.nets:
        rows = {
            side: counted(net, side, options.batch, options.size, getattr(torch, options.dtype), options.device)
            for side in SIDES
        }
        for side, row in rows.items():
            convolutions, passes, kernels = row.values()
            share = (convolutions + passes) / sum(list(rows["inductor"].values())[:2])
            print(
                f"{net:18} {side:9} convolutions and products {convolutions / 1e9:6.2f} GB, passes "
                f"{passes / 1e9:6.2f} GB in {kernels} kernels, together {share:.2f} of inductor's",
                flush=True,
            )


if __name__ == "__main__":
    main()
