"""Train ResNet-50 on synthetic images with PyTorch, one process or many; images per second, with enable() and without.

    python examples/torch_resnet50.py                               # one GPU, or the CPU
    torchrun --standalone --nproc_per_node=4 examples/torch_resnet50.py
    torchrun --standalone --nproc_per_node=4 examples/torch_resnet50.py --plain

Nothing here is convdispatch's but the lines with ``enable`` and ``prepare``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import convdispatch.torch as ct

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
from torch_zoo import resnet50


def main() -> None:
    """Train, and tell how fast."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="images a process and step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    given = parser.parse_args()
    cuda, many = torch.cuda.is_available(), "RANK" in os.environ
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False
    if many:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    if not given.plain:
        ct.enable()
    torch.manual_seed(0)
    model = resnet50().to(device)
    if many:
        model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(given.batch, 3, given.size, given.size, device=device)
    labels = torch.randint(0, 1000, (given.batch,), device=device)
    if not given.plain:
        ct.prepare(model, images)  # what the first step would wait for, on all processors
    warm, begin = min(5, given.steps // 2), 0.0
    for step in range(given.steps):
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    last = loss.item()  # waits
    count = torch.distributed.get_world_size() if many else 1
    rate = count * given.batch * (given.steps - warm) / (time.perf_counter() - begin)
    if not many or torch.distributed.get_rank() == 0:
        print(f"{rate:.1f} images/s on {count} x {device.type}, loss {last:.3f}")
        counted = ct.counters()
        print(f"convolutions here {counted['ours']}, left to PyTorch {counted['left']} {counted['reasons'] or ''}")
    if many:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
