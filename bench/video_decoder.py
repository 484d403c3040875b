"""A video autoencoder's decoder, as those of 2025 are built: causal 3x3x3 convolutions that read frames of the chunk
before, norms and SiLU before them, residuals behind, upsampling of time by channels and of space by neighbours.

Weights are drawn by PyTorch's generator. ``Decoder(...)(z, cached)`` decodes a chunk of latent frames and returns the
picture's frames with what the next chunk needs; ``cached`` is None before the first chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["CausalConv", "Decoder", "RmsNorm"]


class CausalConv(nn.Conv3d):
    """A convolution whose result at a frame depends on no later frame. ``mode`` is ``torch.nn.functional.pad``'s."""

    def __init__(
        self, ic: int, oc: int, kernel: Sequence[int], stride: Sequence[int] = (1, 1, 1), mode: str = "constant"
    ):
        super().__init__(ic, oc, tuple(kernel), tuple(stride))  # type: ignore[arg-type]
        self.mode = mode

    def forward(self, x: torch.Tensor, cached: torch.Tensor | None = None) -> torch.Tensor:
        (kt, kh, kw), count = self.kernel_size, 0
        if cached is not None:
            x, count = torch.cat([cached, x], 2), cached.shape[2]
        return super().forward(
            nn.functional.pad(x, (kw // 2, kw // 2, kh // 2, kh // 2, kt - 1 - count, 0), mode=self.mode)
        )


class RmsNorm(nn.Module):
    """Each pixel's channels by their root mean square, times a channel's gain."""

    def __init__(self, channels: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = nn.functional.normalize(x.float(), dim=1).to(x.dtype)
        return normed * x.shape[1] ** 0.5 * self.gain


class _Chunk:
    """The frames that convolutions read of the chunk before, in their order, and those for the next chunk."""

    def __init__(self, before: Sequence[torch.Tensor] | None):
        self.before, self.after = list(before or ()), list[torch.Tensor]()

    def __call__(self, conv: CausalConv, x: torch.Tensor) -> torch.Tensor:
        keep, cached = conv.kernel_size[0] - 1, self.before.pop(0) if self.before else None
        frames = x if cached is None or x.shape[2] >= keep else torch.cat([cached[:, :, x.shape[2] - keep :], x], 2)
        self.after.append(frames[:, :, -keep:].clone())
        return conv(x, cached)


class _Block(nn.Module):
    def __init__(self, ic: int, oc: int, norm: str, mode: str):
        super().__init__()
        self.norm1, self.norm2 = (RmsNorm(c) if norm == "rms" else nn.GroupNorm(8, c) for c in (ic, oc))
        self.conv1, self.conv2 = (CausalConv(c, oc, (3, 3, 3), mode=mode) for c in (ic, oc))
        self.shortcut = CausalConv(ic, oc, (1, 1, 1)) if ic != oc else nn.Identity()

    def forward(self, x: torch.Tensor, chunk: _Chunk) -> torch.Tensor:
        y = chunk(self.conv1, nn.functional.silu(self.norm1(x)))
        return chunk(self.conv2, nn.functional.silu(self.norm2(y))) + self.shortcut(x)


class _Up(nn.Module):
    """Twice the frames, if ``time``, by twice the channels; twice the pixels along both axes."""

    def __init__(self, ic: int, oc: int, time: bool):
        super().__init__()
        self.time = CausalConv(ic, 2 * ic, (3, 1, 1)) if time else None
        self.space = nn.Conv2d(ic, oc, 3, padding=1)

    def forward(self, x: torch.Tensor, chunk: _Chunk) -> torch.Tensor:
        if self.time is not None:
            n, c, t, h, w = x.shape
            x = chunk(self.time, x).reshape(n, 2, c, t, h, w)
            x = torch.stack((x[:, 0], x[:, 1]), 3).reshape(n, c, 2 * t, h, w)
        n, c, t, h, w = x.shape
        frames = x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w)
        frames = self.space(nn.functional.interpolate(frames, scale_factor=2.0, mode="nearest"))
        return frames.view(n, t, *frames.shape[1:]).permute(0, 2, 1, 3, 4)


class Decoder(nn.Module):
    """Latent channels to three, in stages of ``widths`` with ``blocks`` blocks each; the first two double time."""

    def __init__(
        self,
        widths: Sequence[int] = (384, 384, 192, 96),
        blocks: int = 2,
        latent: int = 16,
        norm: str = "rms",
        mode: str = "constant",
    ):
        super().__init__()
        self.first = CausalConv(latent, widths[0], (3, 3, 3), mode=mode)
        parts: list[nn.Module] = []
        for number, width in enumerate(widths):
            parts += [_Block(width, width, norm, mode) for _ in range(blocks)]
            if number + 1 < len(widths):
                parts.append(_Up(width, widths[number + 1], time=number < 2))
        self.parts = nn.ModuleList(parts)
        self.norm = RmsNorm(widths[-1]) if norm == "rms" else nn.GroupNorm(8, widths[-1])
        self.last = CausalConv(widths[-1], 3, (3, 3, 3), mode=mode)

    def forward(
        self, z: torch.Tensor, cached: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        chunk = _Chunk(cached)
        x = chunk(self.first, z)
        for part in self.parts:
            x = part(x, chunk)
        return chunk(self.last, nn.functional.silu(self.norm(x))), chunk.after
