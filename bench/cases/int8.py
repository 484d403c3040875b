"""int8: a GPU's layers beside float16's.

python -m bench int8 gpu     # one NVIDIA GPU, PyTorch: ResNet-50's layers by ``conv``, in CUDA graphs
"""

from __future__ import annotations

import math
import time

import click
import numpy as np


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--batch", default=32, show_default=True)
@click.option("--seconds", default=0.004, show_default=True, help="of a sample")
@click.option("--budget", default=120.0, show_default=True)
def gpu(batch: int, seconds: float, budget: float) -> None:
    """int8 and float16, channels last, constant weights, each as a CUDA graph, in turns, operands not in the cache."""
    import torch

    import convdispatch as cd
    from bench.timer import graph_side, medians, sets_of
    from convdispatch.measurement import shapes

    begun, ratios = time.monotonic(), []
    problems = [entry.problem for entry in shapes.load("resnet50")]
    for p in dict.fromkeys(
        each.replace(direction="fwd", mb=batch, layout="nhwc", dtype="float16") for each in problems
    ):
        if p.ic % 4:
            continue
        if time.monotonic() - begun > budget:
            break
        quantization = cd.Quantization(
            x_scale=0.02, x_zero_point=3, w_scale=np.full(p.oc, 0.01, np.float32), y_scale=0.7, dtype="uint8"
        )
        options = {"stride": (p.sh, p.sw), "padding": (p.ph, p.pw), "layout": "nhwc"}
        many = sets_of(math.prod(p.x_shape) + math.prod(p.y_shape))

        def made(shape, kind):
            values = torch.randint(-100, 100, shape, device="cuda")
            return (values / 100 if kind == torch.float16 else values).to(kind)

        def side(kind, w_kind, many=many, p=p, options=options, **more):
            w = cd.constant(made(p.w_shape, w_kind))
            pairs = [(made(p.x_shape, kind), made(p.y_shape, kind)) for _ in range(many)]

            def work(number: int) -> None:
                x, y = pairs[number % many]
                cd.conv(x, w, out=y, **options, **more)

            return graph_side(work)

        sides = {"int8": side(torch.uint8, torch.int8, quantization=quantization)}
        sides["float16"] = side(torch.float16, torch.float16)
        found = {name: 1e3 * ms for name, ms in medians(sides, seconds).items()}
        ratios.append(found["float16"] / found["int8"])
        rate = p.flops / found["int8"] / 1e6
        print(f"{p}: int8 {found['int8']:.1f} us ({rate:.0f} TOP/s), float16 {found['float16']:.1f} us, ratio "
              f"{found['float16'] / found['int8']:.2f}", flush=True)  # fmt: skip
    mean = math.exp(float(np.mean(np.log(ratios))))
    print(f"{torch.cuda.get_device_name()}, batch {batch}: geometric mean {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
