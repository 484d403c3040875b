"""A video decoder's chunk by PyTorch eager, by our back end and by inductor: times, errors, and on a GPU peak memory.

``python -m bench video [--device cpu] [--dtype float32] [--size 15 26] [--widths 48 48 24 12] [--blocks 1] [--norm rms]
[--mode constant] [--channels-last] [--rounds 5]``

The third chunk of one latent frame (``bench.video_decoder``), which reads two cached frames at each convolution. On a
GPU each side is a CUDA graph, with kernels ready. The sizes of a 480p decoder are ``--size 60 104 --widths 384 384 192
96``.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import torch

import convdispatch as cd
import convdispatch.torch
from bench.results import markdown
from bench.timer import graph_side, in_turns, medians
from bench.video_decoder import Decoder

LATENT = 16
"""Latent channels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", type=int, nargs=2, default=[15, 26])
    parser.add_argument("--widths", type=int, nargs="+", default=[48, 48, 24, 12])
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--norm", default="rms", choices=["rms", "group"])
    parser.add_argument("--mode", default="constant", choices=["constant", "replicate"])
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with torch.inference_mode():
        print(markdown(["side", "ms", "difference to eager", "peak MB"], _rows(options)))


def _rows(options: argparse.Namespace) -> list[list[str]]:
    torch.manual_seed(0)
    on_gpu = options.device.startswith("cuda")
    decoder = Decoder(options.widths, options.blocks, LATENT, options.norm, options.mode)
    decoder = decoder.to(options.device, getattr(torch, options.dtype)).eval().requires_grad_(False)
    z = torch.randn(1, LATENT, 1, *options.size).to(options.device, getattr(torch, options.dtype))
    if options.channels_last:
        z = z.contiguous(memory_format=torch.channels_last_3d)
        for weight in (each for each in decoder.parameters() if each.ndim == 5):
            weight.data = weight.data.contiguous(memory_format=torch.channels_last_3d)
    cached = decoder(z, decoder(z)[1])[1]
    sides = {
        "eager": decoder,
        "convdispatch": torch.compile(decoder, backend="convdispatch", dynamic=False),
        "inductor": torch.compile(decoder, dynamic=False),
    }
    expected, notes = decoder(z, cached)[0], {}
    for name, side in sides.items():
        with cd.policy(tier="full"):
            side(z, cached)
        notes[name] = _difference(side(z, cached)[0], expected), _peak(side, z, cached) if on_gpu else "-"
    if on_gpu:
        ms = medians({name: graph_side(lambda _, side=side: side(z, cached)) for name, side in sides.items()})
    else:
        ms = in_turns({name: functools.partial(_ms, side, z, cached) for name, side in sides.items()}, options.rounds)
    return [[name, f"{ms[name]:.2f}", *notes[name]] for name in sides]


def _difference(picture: torch.Tensor, expected: torch.Tensor) -> str:
    return f"{float((picture.double() - expected.double()).norm() / expected.double().norm()):.1e}"


def _peak(side: Any, *given: Any) -> str:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    side(*given)
    torch.cuda.synchronize()
    return f"{(torch.cuda.max_memory_allocated() - before) / 1e6:.0f}"


def _ms(side: Any, *given: Any) -> float:
    begin = time.perf_counter()
    side(*given)
    return (time.perf_counter() - begin) * 1e3


if __name__ == "__main__":
    main()
