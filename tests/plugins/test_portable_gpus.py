"""Small problems, dtypes and epilogues of the portable solvers for GPUs, run as ``plans.py`` says: ``implicitgemm``'s
integer data exactly, real data of ``winograd`` and ``fft`` within the error of their dtype."""

from __future__ import annotations

import convdispatch_fft
import convdispatch_implicitgemm
import convdispatch_winograd
import pytest
from checking import TOLERANCE
from plans import SMALL, check_solver, declared, table_cases

from convdispatch import ConvProblem
from convdispatch.api.problem import DIRECTIONS, LAYOUTS

pytestmark = pytest.mark.usefixtures("item_by_item")
PLUGINS = {
    "implicitgemm": declared(convdispatch_implicitgemm, SMALL),
    "winograd": declared(convdispatch_winograd, SMALL),
    "fft": declared(convdispatch_fft, SMALL),
}
TILED, F4, FFT = "implicitgemm.tiled", "winograd.tiled_f4x3", "fft.gpu"


def check(queue, problem: ConvProblem, name: str, **options) -> None:
    plugin = name.split(".")[0]
    if plugin != "implicitgemm":
        options["data"] = "real"
    if plugin == "fft":
        options["limit"] = {**TOLERANCE, "float32": 2e-6}[problem.dtype]
    check_solver(queue, problem, PLUGINS[plugin][name], **options)


def refusal(solver, problem: ConvProblem) -> str | None:
    """Of the kernels, not of what is worth while."""
    return getattr(solver, "limits", solver.rejects)(problem, SMALL)


CASES = [(plugin, case) for plugin, every in (("implicitgemm", 19), ("winograd", 67), ("fft", 31)) for case in
         table_cases(every, *[lambda p: refusal(PLUGINS["fft"][FFT], p) is None] * (plugin == "fft"))]  # fmt: skip


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [pytest.param(plugin, *case.values, id=f"{plugin}-{case.id}", marks=case.marks) for plugin, case in CASES],
)
def test_near_misses(queue, full, plugin, problem):
    accepting = [name for name, solver in PLUGINS[plugin].items() if refusal(solver, problem) is None]
    if not accepting:
        pytest.skip("no solver's shape")
    few = plugin == "winograd" and not full
    for name in accepting[:: max(1, len(accepting) // 2)] if few else accepting:
        check(queue, problem, name)


WAYS = [("nchw", "ic8"), ("nhwc", "ic8"), ("nhwc", "ic6")]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(queue, full, dtype, direction):
    number = len(dtype + direction)
    problem = ConvProblem.parse("mb2ic8ih9iw8oc12kh3ph1").replace(direction=direction, dtype=dtype)
    check(queue, problem.replace(layout=LAYOUTS[number % 2]), TILED)
    check(queue, problem.replace(layout=LAYOUTS[number % 2]), TILED, data="real")
    if dtype != "float64":
        check(queue, ConvProblem.parse("mb2ic6ih9oc5kh5ph2").replace(direction=direction, dtype=dtype), FFT)
    taken = direction != "bwd_weights"  # which winograd.tiled refuses
    if taken and (full or (["float64", "float16", "bfloat16"].index(dtype) + DIRECTIONS.index(direction)) % 3):
        for layout, channels in WAYS if full else [WAYS[number % 3]]:
            check(queue, problem.replace(layout=layout, ic=int(channels[2:])), F4)


EPILOGUES = {
    "implicitgemm": [
        "fwd_mb2ic8ih6oc8kh3ph1+bias+residual+relu", "fwd_nhwc_mb2ic8ih6oc8kh3ph1+bias+residual+relu",
        "fwd_mb2ic8ih7oc10kh1+bias+constant", "fwd_nhwc_f16_mb1ic5ih7oc6kh3+bias+relu+constant",
        "fwd_mb2ic6ih6oc8kh3+accumulate", "bwd_data_mb2ic8ih9oc8kh3sh2ph1+bias+relu+constant",
        "bwd_data_mb2ic3ih9oc8kh3sh2ph1+bias+residual", "bwd_weights_mb2ic8ih6oc8kh3ph1+accumulate",
        "bwd_weights_g4mb2ic4ih6oc4kh3ph1+accumulate", "fwd_g4mb2ic4ih6oc4kh3ph1+bias+relu6+constant",
    ],
    "winograd": [
        "fwd_mb2ic8ih6oc8kh3ph1+bias+residual+relu", "fwd_nhwc_mb2ic8ih6oc8kh3ph1+bias+residual+relu",
        "fwd_nhwc_mb2ic7ih6oc7kh3ph1+bias+residual+relu", "fwd_mb2ic8ih7oc10kh3+bias+constant",
        "fwd_nhwc_f16_mb1ic5ih7oc6kh3+bias+relu+constant", "fwd_mb2ic6ih6oc8kh3+accumulate",
        "bwd_data_mb2ic8ih9oc8kh3ph1+bias+relu+constant", "bwd_data_nhwc_mb2ic3ih9oc8kh3ph1+bias+residual+constant",
        "bwd_weights_mb2ic8ih6oc8kh3ph1+accumulate", "bwd_weights_nhwc_g4mb2ic16ih6oc16kh3ph1+accumulate",
        "fwd_g4mb2ic20ih6oc12kh3ph1+bias+relu6+constant", "bwd_data_nhwc_g2mb2ic10ih7oc12kh3ph1+accumulate",
        "fwd_mb2ic6ih8oc8kh3ph0pw2ph_r1pw_r0+bias", "bwd_data_mb2ic6ih8oc8kh3ph2pw3ph_r0pw_r1",
        "bwd_weights_mb2ic6ih8oc8kh3ph2pw0ph_r0pw_r3",
    ],
    "fft": [
        "fwd_mb2ic8ih9oc8kh5ph2+bias+residual+relu", "fwd_nhwc_mb2ic4ih20oc6kh5ph2+bias+residual+relu",
        "fwd_mb2ic8ih7oc10kh3+bias+constant", "fwd_g2mb2ic6ih6oc8kh3+accumulate",
        "bwd_data_mb2ic8ih9oc8kh3ph1+bias+relu+constant", "bwd_weights_mb2ic8ih6oc8kh3ph1+accumulate",
        "fwd_g4mb2ic4ih6oc8kh3ph1+bias+relu6+constant",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("plugin", "text"), [(plugin, text) for plugin, texts in EPILOGUES.items() for text in texts])
def test_epilogues_groups_pads_and_constant_weights(queue, plugin, text):
    problem = ConvProblem.parse(text)
    names = [F4] if plugin == "winograd" else PLUGINS[plugin]
    for name in names:
        if refusal(PLUGINS[plugin][name], problem) is None:
            check(queue, problem, name)
