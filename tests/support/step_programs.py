"""How many programs the convolutions of a training step need, by solver, on a described GPU: nothing is compiled.

    python tests/support/step_programs.py
    python tests/support/step_programs.py --all torchvision timm --from layers.txt

The first line counts four nets, in float16 channels last and TF32 of NCHW; the second one the layers of these nets, of
libraries' models (bench/library_models.py) and of a file together, in each dtype and layout.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Iterator
from pathlib import Path

import paths  # noqa: F401 (bench is found then)

from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device.programs.kernels import rendering
from convdispatch.measurement import shapes
from convdispatch.measurement.grammar import read_file
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.visible_problem import visible_problem
from convdispatch.tools.targets.described import DESCRIBED, described_context

NETS = ("resnet50_full", "densenet121", "convnext_t", "efficientnet_b0")
FORMS = {"float16": {"dtype": "float16", "layout": "nhwc"}, "tf32": {"math": "tf32"}}
DTYPES = {"float16": {"dtype": "float16"}, "tf32": {"math": "tf32"}, "float32": {}}


def directions_of(layers: Iterable[ConvProblem], **form: str) -> Iterator[ConvProblem]:
    """Each layer in each direction, once; a first layer has no data gradient."""
    seen = set()
    for layer in layers:
        for direction in DIRECTIONS:
            problem = layer.replace(direction=direction, **form)
            if problem not in seen and not (direction == "bwd_data" and problem.ic == 3):
                seen.add(problem)
                yield problem


def problems_of_step(net: str, batch: int = 64, **form: str) -> Iterator[ConvProblem]:
    """The layers of a shape table in each direction."""
    return directions_of((entry.problem.replace(mb=batch) for entry in shapes.load(net)), **form)


def programs(problems: Iterable[ConvProblem], device: DeviceInfo) -> collections.Counter[str]:
    """The number of different texts that the first choice of each problem compiles, by solver."""
    context, texts = described_context(device), {}
    for problem in problems:
        best = rank(problem, device)[0]
        with rendering() as rendered:
            best.solver.plan(context, visible_problem(best.solver, problem), best.config)
        for text in rendered:
            texts.setdefault(text, best.solver.name)
    return collections.Counter(texts.values())


def layers_of_models(library: str) -> Iterator[ConvProblem]:
    """The convolutions of a library's models as they run, forward and without epilogues; nothing is computed."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    from bench.library_models import LIBRARIES

    layers: dict[ConvProblem, None] = {}

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.convolution.default:
                layers.setdefault(layer_of(*args))
            return function(*args, **(kwargs or {}))

    for name, make in LIBRARIES[library].items():
        try:
            net, args, kwargs = make()
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
            with torch.no_grad(), Noted():
                net.eval().to("meta")(*args, **kwargs)
        except Exception as error:  # What depends on values ends there.
            print(f"{library}/{name} ended: {type(error).__name__}: {str(error)[:100]}", flush=True)
    return iter(layers)


def layer_of(x, w, bias, stride, padding, dilation, transposed, output_padding, groups) -> ConvProblem:
    """The convolution, or that whose data gradient a transposed convolution is."""
    axes = "dhw"[5 - x.dim() :]
    channels = (w.shape[1] * groups, w.shape[0]) if transposed else (x.shape[1], w.shape[0])
    fields = {"mb": x.shape[0], "ic": channels[0], "oc": channels[1], "g": groups, "ndim": len(axes)}
    for number, axis in enumerate(axes):
        k, s, p, d = w.shape[2 + number], *(each[number] for each in (stride, padding, dilation))
        size = x.shape[2 + number]
        if transposed:
            size = (size - 1) * s - 2 * p + d * (k - 1) + 1 + output_padding[number]
        fields |= {f"i{axis}": size, f"k{axis}": k, f"s{axis}": s, f"p{axis}": p, f"d{axis}": d}
    return ConvProblem(**fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", nargs="*", metavar="LIBRARY")
    parser.add_argument("--from", dest="files", nargs="*", default=[], type=Path)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    if given.all is None:
        for form, options in FORMS.items():
            for net in NETS:
                show(f"{net} {form}", problems_of_step(net, **options))
        return
    layers = [entry.problem for net in NETS for entry in shapes.load(net)]
    layers += [layer for library in given.all for layer in layers_of_models(library)]
    layers += [entry.problem for file in given.files for entry in read_file(file)]
    layers = list(dict.fromkeys(layer.replace(mb=given.batch) for layer in layers))
    print(f"{len(layers)} layers", flush=True)
    for name, options in DTYPES.items():
        for layout in ("nchw", "nhwc"):
            show(f"{name} {layout}", directions_of(layers, layout=layout, **options))


def show(name: str, problems: Iterable[ConvProblem]) -> None:
    counts = programs(problems, DESCRIBED["h200"])
    by_solver = ", ".join(f"{solver} {count}" for solver, count in counts.most_common())
    print(f"{name}: {sum(counts.values())} programs ({by_solver})", flush=True)


if __name__ == "__main__":
    main()
