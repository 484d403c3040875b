"""What runs on CUDA beside convolutions, against PyTorch: max pooling of fused models, gradients of biases.

    python bench/torch_checks.py

Prints the largest difference from PyTorch's own of each case, and times of the large ones in turns.
"""

from __future__ import annotations

import torch
from torch_rows import timed

import convdispatch.torch as ct

CASES = (
    ((64, 64, 112, 112), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((32, 64, 224, 224), {"kernel_size": 2, "stride": 2}),
    ((3, 7, 19, 23), {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True}),
    ((2, 40, 9, 9), {"kernel_size": 3, "stride": 1, "dilation": 2}),
)


def main() -> None:
    """Check and time."""
    torch.manual_seed(0)
    pool = torch.ops.convdispatch.max_pool2d
    for shape, options in CASES:
        for kind in (torch.float16, torch.bfloat16, torch.float32):
            for form in (torch.channels_last, torch.contiguous_format):
                x = torch.randn(shape, device="cuda").to(kind).contiguous(memory_format=form)
                expected = torch.nn.functional.max_pool2d(x, **options)
                sizes = torch.nn.MaxPool2d(**options)
                given = [sizes.kernel_size, sizes.stride, sizes.padding, sizes.dilation]
                pairs = [list(each) if isinstance(each, tuple) else [each, each] for each in given]
                got = pool(x, *pairs, sizes.ceil_mode)
                words = f"pool {shape} {kind} {form}: equal {torch.equal(got, expected)}"
                if x.numel() > 1 << 24:
                    ours = timed(lambda x=x, p=pairs, s=sizes: pool(x, *p, s.ceil_mode), True, 0.05)
                    words += f", {1e3 * ours:.0f} us, PyTorch {1e3 * timed(lambda: sizes(x), True, 0.05):.0f}"  # noqa: B023
                print(words, flush=True)
    for shape in ((64, 64, 224, 224), (16, 48, 33, 35)):
        for kind in (torch.bfloat16, torch.float32):
            dy = torch.randn(shape, device="cuda").to(kind).contiguous(memory_format=torch.channels_last)
            w = torch.randn(shape[1], 8, 1, 1, device="cuda").to(kind)
            x = torch.randn(shape[0], 8, *shape[2:], device="cuda").to(kind)
            x = x.contiguous(memory_format=torch.channels_last)
            rest = (x, w, [shape[1]], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, False, True])
            with ct.enable():
                got = torch.ops.aten.convolution_backward(dy, *rest)[2]
                ours = timed(lambda: torch.ops.aten.convolution_backward(dy, *rest), True, 0.05)  # noqa: B023
            exact = dy.double().sum((0, 2, 3))
            error = float((got.double() - exact).norm() / exact.norm())
            print(f"bias {shape} {kind}: error {error:.1e}, {1e3 * ours:.0f} us", flush=True)
    print(ct.counters())


if __name__ == "__main__":
    main()
