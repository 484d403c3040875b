"""int8: a GPU's layers in 8 bits beside 16.

python -m bench int8 gpu       # one NVIDIA GPU, PyTorch: ResNet-50's layers by ``conv``, in CUDA graphs
python -m bench int8 float8    # the same of drawn layers of 256 channels and more: float8 beside bfloat16 and integers
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import numpy as np

if TYPE_CHECKING:
    from bench.timer import Side


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--batch", default=32, show_default=True)
@click.option("--seconds", default=0.004, show_default=True, help="of a sample")
@click.option("--budget", default=120.0, show_default=True)
def gpu(batch: int, seconds: float, budget: float) -> None:
    """int8 and float16, channels last, constant weights, each as a CUDA graph, in turns, operands not in the cache."""

    import convdispatch as cd
    from convdispatch.measurement import shapes

    problems = [entry.problem for entry in shapes.load("resnet50")]
    problems = [p.replace(direction="fwd", mb=batch, layout="nhwc", dtype="float16") for p in problems if p.ic % 4 == 0]

    def sides(p: Any) -> dict[str, Side]:
        scales = {"x_scale": 0.02, "x_zero_point": 3, "w_scale": np.full(p.oc, 0.01, np.float32), "y_scale": 0.7}
        quantization = cd.Quantization(**scales, dtype="uint8")
        return {"int8": _side(p, "uint8", "int8", quantization), "float16": _side(p, "float16", "float16")}

    compare([*dict.fromkeys(problems)], sides, seconds, budget)


@main.command()
@click.option("--layers", default=12, show_default=True)
@click.option("--seconds", default=0.01, show_default=True, help="of a sample")
@click.option("--search", default=0.0, show_default=True, help="Seconds of a search before each side's times.")
def float8(layers: int, seconds: float, search: float) -> None:
    """float8 (e4m3), int8 (the same engine, whose sums stay in the tensor cores) and bfloat16; results of x's dtype."""

    import convdispatch as cd

    def sides(p: Any) -> dict[str, Side]:
        narrow = cd.Quantization(w_scale=1 / 16, y_scale=1 / 64, dtype="float8_e4m3")
        whole = cd.Quantization(w_scale=0.01, y_scale=0.7, dtype="int8")
        if search:
            for dtype in ("float8_e4m3", "int8", "bfloat16"):
                out = None if dtype == "bfloat16" else dtype
                cd.find(p.replace(dtype=dtype, out_dtype=out, constant_weights=True), "gpu", budget_ms=1e3 * search)
        return {
            "float8": _side(p, "float8_e4m3fn", "float8_e4m3fn", narrow),
            "int8": _side(p, "int8", "int8", whole),
            "bfloat16": _side(p, "bfloat16", "bfloat16"),
        }

    compare(drawn(layers), sides, seconds)


def compare(
    problems: list[Any], sides: Callable[[Any], dict[str, Side]], seconds: float, budget: float = math.inf
) -> None:
    """Print each problem's times on all sides, and the last one's over the others', with geometric means."""
    from bench.timer import medians

    begun, ratios = time.monotonic(), defaultdict[str, list[float]](list)
    for p in problems:
        if time.monotonic() - begun > budget:
            break
        found = {name: 1e3 * ms for name, ms in medians(sides(p), seconds).items()}
        *others, last = found
        for name in others:
            ratios[name].append(found[last] / found[name])
        rates = ", ".join(f"{name} {us:.1f} us ({p.flops / us / 1e6:.0f} T/s)" for name, us in found.items())
        print(f"{p}: {rates}, over {last}: {', '.join(f'{of[-1]:.2f}' for of in ratios.values())}", flush=True)
    for name, of in ratios.items():
        print(f"{name} over {last}: geometric mean {statistics.geometric_mean(of):.2f}, least {min(of):.2f}")


def drawn(count: int) -> list[Any]:
    """Problems of 256 channels and more, of 20 to 400 GFLOP."""
    import convdispatch as cd

    draw, channels, problems = random.Random(55), (256, 384, 512, 768, 1024), []
    while len(problems) < count:
        mb, ic, oc = draw.choice((8, 16, 32, 64)), draw.choice(channels), draw.choice(channels)
        size, k, step = draw.choice((7, 14, 28, 56)), draw.choice((1, 3, 3)), draw.choice((1, 1, 1, 2))
        sizes = {"mb": mb, "ic": ic, "ih": size, "iw": size, "oc": oc}
        kernel = {"kh": k, "kw": k, "sh": step, "sw": step, "ph": k // 2, "pw": k // 2}
        problem = cd.ConvProblem(**sizes, **kernel, layout="nhwc", dtype="bfloat16")
        if 2e10 <= problem.flops <= 4e11:
            problems.append(problem)
    return problems


def _side(p: Any, dtype: str, w_dtype: str, quantization: Any = None) -> Side:
    """The problem by ``conv`` on drawn data as a CUDA graph, for ``medians``."""
    import torch

    import convdispatch as cd
    from bench.timer import graph_side, sets_of

    many = sets_of(math.prod(p.x_shape) + math.prod(p.y_shape))
    options = {"stride": (p.sh, p.sw), "padding": (p.ph, p.pw), "layout": "nhwc"}
    options |= {"quantization": quantization} if quantization else {}

    def made(shape: tuple[int, ...], name: str) -> torch.Tensor:
        values = torch.randint(-100, 100, shape, device="cuda")
        return (values / 100 if "float" in name else values).to(getattr(torch, name))

    w = cd.constant(made(p.w_shape, w_dtype))
    pairs = [(made(p.x_shape, dtype), made(p.y_shape, dtype)) for _ in range(many)]

    def work(number: int) -> None:
        x, y = pairs[number % many]
        cd.conv(x, w, out=y, **options)

    return graph_side(work)


if __name__ == "__main__":
    main()
