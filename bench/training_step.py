"""A ResNet-18 training step in torch with each convolution by ``conv()``, beside torch's own: one small wrapper.

    python bench/training_step.py [--size 112] [--batch 4] [--rounds 9]
    python bench/training_step.py --torch-alone        # PyTorch's threads spin as they do without us

``wrapper`` calls convdispatch in an autograd function, ``enable`` routes torch's own operators there
(``convdispatch.torch.enable``). Weights change at every step, so nothing of them is kept. The sides take turns; each
runs unseen until the threads of the one before it sleep. A time is a median, a ratio torch's better time over it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import torch
import torch_zoo
from torch import nn

import convdispatch as cd
import convdispatch.torch as ct
from convdispatch.device import runtime

UNSEEN_S = 0.3


class Wrapped(torch.autograd.Function):
    """A convolution and its gradients on the memory of torch's tensors."""

    @staticmethod
    def forward(ctx, x, w, options):
        ctx.save_for_backward(x, w)
        ctx.options = options
        return torch.from_numpy(cd.conv(x.numpy(), w.numpy(), **options))

    @staticmethod
    def backward(ctx, dy):
        (x, w), options, dx = ctx.saved_tensors, ctx.options, None
        dy = dy.contiguous().numpy()
        if ctx.needs_input_grad[0]:
            dx = torch.from_numpy(cd.conv_backward_data(dy, w.numpy(), tuple(x.shape), **options))
        return dx, torch.from_numpy(cd.conv_backward_weights(x.numpy(), dy, tuple(w.shape), **options)), None


class Conv(nn.Module):
    """In the place of a ``Conv2d`` without bias."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight = conv.weight
        self.options = {"stride": conv.stride, "padding": conv.padding, "groups": conv.groups}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Wrapped.apply(x, self.weight, self.options)


def replaced(module: nn.Module) -> nn.Module:
    """The module with ``Conv`` for every ``Conv2d``."""
    for name, child in module.named_children():
        setattr(module, name, Conv(child) if isinstance(child, nn.Conv2d) else replaced(child))
    return module


def step_of(net: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Callable[[], float]:
    """One step: forward, backward, SGD with momentum; answers the loss."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


@click.command(help=__doc__)
@click.option("--size", default=112, show_default=True)
@click.option("--batch", default=4, show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--torch-alone", "alone", is_flag=True, help="time torch only, before anything of ours has run")
@click.option("--steps", default=3, show_default=True, help="of a sample")
def main(size: int, batch: int, rounds: int, alone: bool, steps: int) -> None:
    torch.set_num_threads(runtime.device_info(runtime.default_device()).compute_units)
    x, labels = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))

    def net() -> nn.Module:
        torch.manual_seed(0)
        return torch_zoo.resnet18()

    last = step_of(net().to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last), labels)
    plain = step_of(net(), x, labels)

    def enabled() -> float:
        with ct.enable():
            return routed()

    routed = step_of(net(), x, labels)
    sides = {"torch": plain, "torch, channels last": last}
    if not alone:
        ct.share_cores()
        sides |= {"wrapper": step_of(replaced(net()), x, labels), "enable": enabled}
    losses = {name: step() for name, step in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, step in sides.items():
            end = time.perf_counter() + UNSEEN_S
            while time.perf_counter() < end:
                step()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            times[name].append(1e3 * (time.perf_counter() - begin) / steps)
    best = min(statistics.median(times["torch"]), statistics.median(times["torch, channels last"]))
    for name, values in times.items():
        middle = statistics.median(values)
        share = f"{best / middle:.2f} of torch's speed, first loss {losses[name]:.5f}"
        print(f"{name:22} {middle:8.1f} ms ({min(values):.1f} to {max(values):.1f}), {share}")


if __name__ == "__main__":
    main()
