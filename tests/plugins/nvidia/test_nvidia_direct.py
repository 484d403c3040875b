"""nvidia.direct: everything but the tensor cores' instructions runs on any device, in plain C stand-ins.

Plans run as ``plans.py`` says; integer data compare exactly. The stand-ins round sums toward zero, as tensor cores do,
so that real data show the error that promotion leaves.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checking import make_operands
from convdispatch_nvidia.direct.solver import DirectPlan
from convdispatch_nvidia.direct.tiling import DirectTile, DirectTiling
from plans import check_extremes, check_plan

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("item_by_item")

SOLVER = plugins().solvers["nvidia.direct"]
HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
SMALL = {"bm": 32, "bn": 32, "wm": 1, "wn": 1}
WARPS = {"bm": 32, "bn": 32, "wm": 2, "wn": 2}
CASES = [
    # shapes of the three directions, what the configuration adds
    ("mb1ic8ih1oc8", {}),
    ("mb3ic33ih7oc35", {"split": 2}),  # 49 pixels: single copies
    ("mb2ic36ih14iw14oc28", {"bn": 64}),  # 196
    ("mb1ic31ih28oc16", {"bm": 16, "bn": 128, "wn": 2, "stages": 4}),  # 784
    ("mb2ic66ih9iw6oc34", {"bk": 16, "split": 2}),  # pairs
    ("mb17ic40ih1oc36", {}),
    ("mb1ic65ih5iw4oc63", {"bm": 64, "wm": 2, "bk": 16, "stages": 2}),
    ("mb2ic64ih4iw16oc32", {"flush_every": 1, "bk": 16}),
    ("mb3ic41ih7oc35", {"format": "bf16x3"}),
    ("mb2ic70ih8oc36", {"format": "bf16x3", "bk": 16, "flush_every": 2}),
    ("mb1ic160ih4oc32", {"flush_every": 2, "stages": 4, "bk": 16}),
    ("mb2ic3ih5oc5", {"bk": 16}),
    ("mb2ic12ih7iw8oc20g2", {"bk": 16}),
    ("mb1ic24ih4oc12g3", {"split": 1, "bn": 16}),
    ("mb2ic20ih8iw7oc12sh2sw3", {}),
    ("mb2ic20ih9iw8oc12sh2sw1", {"bk": 16}),
    ("mb2ic12ih2iw2oc12sh2sw2", {"bk": 16}),
    ("mb1ic8ih5iw5oc8sh5sw4g2", {"bk": 16}),
    ("mb3ic16iw40oc16", {"bk": 16}),
    ("mb2ic9iw11oc16sw2", {"bk": 16}),
    ("mb2ic8id3ih4iw5oc16", {"bk": 16}),
    ("mb1ic8id5ih4iw5oc16sd2sh3sw2", {"bk": 16}),
    ("mb1ic8id1ih1iw6oc16sd2sh2sw1", {"bk": 16}),
    ("mb2ic48ih6oc48", {"bm": 48, "wm": 1, "bk": 16}),
]
MORE = [
    ("fwd_f32_mb2ic20ih6oc18+bias+relu", {}),
    ("fwd_f32_nhwc_mb2ic20ih6oc18+bias+residual+relu", {"split": 1}),
    ("fwd_f32_nhwc_mb2ic20ih5oc20+bias+residual", {"bk": 16, "split": 2}),
    ("fwd_f32_mb2ic200ih5oc20+bias+residual+relu", {"bk": 16, "split": 3}),
    ("fwd_f32_mb2ic20ih4oc20g2+accumulate", {"bk": 16}),
    ("bwd_data_f32_mb2ic20ih7oc20sh2+bias+residual+relu", {"bk": 16}),
    ("bwd_data_f32_nhwc_mb2ic20ih7oc20g2sh2sw3+accumulate", {"bk": 16}),
    ("bwd_data_f32_mb1ic20ih6oc40sh2sw2+bias", {"bk": 16, "split": 2}),
    ("bwd_weights_f32_mb5ic20ih7oc24+accumulate", {"bk": 16, "split": 15}),
    ("bwd_weights_f32_nhwc_mb5ic20ih8oc24g2sh2+accumulate", {"bk": 16, "split": 5}),
    ("bwd_weights_f32_mb6ic20ih7oc24", {"bk": 16, "split": 18}),  # lanes share the parts
    ("fwd_f32_mb1ic24ih5oc16+constant", {}),
    ("fwd_f32_mb2ic12ih8iw8oc12sh2sw2", {}),  # sizes in fours, gathered pixels
    ("fwd_f32_tf32_mb1ic24ih5oc16", {"format": "tf32"}),
    ("bwd_weights_f32_tf32_nhwc_mb2ic24ih5oc16", {"format": "tf32", "stages": 2, "split": 2}),
]
LIMITS = {
    ("tf32x3", 0, False): 5e-7, ("tf32x3", 0, True): 1.2e-7, ("tf32x3", 4, False): 1.5e-6, ("tf32x3", 4, True): 1.5e-6,
    ("bf16x3", 0, False): 6e-6, ("bf16x3", 4, False): 6e-6,
}  # fmt: skip
"""Errors on real data by format, ``flush_every``, ``compensated``: what is left out, and sums rounded toward zero."""


def check(queue, problem: ConvProblem, config, *, emulate=True, **options) -> float:
    assert DirectTiling(problem, DirectTile.of(config)).misfit is None
    plan = DirectPlan(queue.context, problem, config, emulate=emulate)
    assert plan.workspace_size == SOLVER.workspace(problem, HOPPER, config)
    return check_plan(queue, problem, plan, f"{problem} {config}", **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("text", "extra"), CASES, ids=[text for text, _ in CASES])
def test_emulated(queue, full, direction, layout, text, extra):
    """The kernel's copies, fragments and results, the instructions replaced by plain C that reads the same memory."""
    number = [each for each, _ in CASES].index(text)
    way = number + DIRECTIONS.index(direction)
    if not full and (way % 3 or (way // 3 + number // 6) % 2 != LAYOUTS.index(layout)):
        pytest.skip("thinned out; --full runs it")
    problem = ConvProblem.parse(f"{direction}_f32_{layout + '_' if layout == 'nhwc' else ''}{text}k{text_axis(text)}1")
    config = {**(SMALL if number % 2 else WARPS), **extra}
    tile = DirectTile.of(config)
    if tile.bm & (tile.bm - 1) and not DirectTiling(problem, tile).operands[0].along_k:
        pytest.skip("such rows come in powers of two")
    config["split"] = min(tile.split, DirectTiling(problem, tile).slices)
    check(queue, problem, config)


def text_axis(text: str) -> str:
    """An axis that the text names."""
    return next(axis for axis in "dhw" if f"i{axis}" in text)


@pytest.mark.parametrize(("text", "extra"), MORE, ids=[text for text, _ in MORE])
def test_epilogues_and_parts(queue, text, extra):
    """What follows the sums, of whole sums and of parts."""
    check(queue, ConvProblem.parse(text.replace("+", "kh1+", 1) if "+" in text else text + "kh1"), {**SMALL, **extra})


@pytest.mark.parametrize(("name", "flush_every", "compensated"), list(LIMITS))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_accuracy(queue, full, direction, name, flush_every, compensated):
    """Split values keep float32's accuracy over long sums that tensor cores round toward zero."""
    number = list(LIMITS).index((name, flush_every, compensated))
    if not full and (number + DIRECTIONS.index(direction)) % 2:
        pytest.skip("thinned out; --full runs it")
    text = {"fwd": "mb1ic2048ih3oc8", "bwd_data": "mb1ic8ih3oc2048", "bwd_weights": "mb2ic8ih32oc8"}[direction]
    problem = ConvProblem.parse(f"{direction}_f32_{text}kh1")
    config = {
        "bm": 16,
        "bn": 16,
        "wm": 1,
        "wn": 1,
        "bk": 16,
        "flush_every": flush_every,
        "compensated": compensated,
        "format": name,
    }
    error = check(queue, problem, config, data="real", limit=LIMITS[name, flush_every, compensated])
    assert error > 1e-8


def test_ieee_is_as_exact_as_a_plain_sum(queue):
    """At most twice the error of float32 additions one after the other; in fact less than one."""
    problem = ConvProblem.parse("fwd_f32_ieee_mb1ic2048ih4oc16kh1")
    config = {**SMALL, **{name: value for name, value in next(iter(SOLVER.configs(problem, HOPPER))).items()
                          if name in ("format", "flush_every", "compensated")}}  # fmt: skip
    operands, expected = make_operands(problem, "real")
    products = operands.w.reshape(16, 1, -1) * operands.x.reshape(1, 2048, 16).transpose(0, 2, 1)
    plain = np.cumsum(products, axis=-1, dtype=np.float32)[..., -1].reshape(problem.y_shape)
    assert check(queue, problem, config, data="real") < reference.relative_error(plain, expected)


def test_accuracy_of_one_product(queue):
    """TF32's 11 bits."""
    problem = ConvProblem.parse("fwd_f32_tf32_mb1ic64ih6oc16kh1")
    error = check(queue, problem, {**SMALL, "format": "tf32"}, data="real", limit=4e-4)
    assert error > 1e-4


@pytest.mark.parametrize(
    ("number", "name", "compensated"),
    [(0, "tf32x3", False), (1, "bf16x3", False), (0, "tf32", False), (1, "tf32x3", True)],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_extremes(queue, full, number, name, compensated, layout):
    if not full and number != LAYOUTS.index(layout):
        pytest.skip("thinned out; --full runs it")
    problem = ConvProblem.parse("fwd_f32_mb1ic36ih6iw6oc20kh1").replace(layout=layout)
    plan = DirectPlan(queue.context, problem, {**SMALL, "format": name, "compensated": compensated}, emulate=True)
    check_extremes(queue, problem, plan, {"tf32": 2e-3, "bf16x3": 1e-5, "tf32x3": 1e-6}[name])


def _samples(configs) -> list:
    """The first three of each format."""
    configs = list(configs)
    names = {config.get("format") for config in configs}
    return [config for name in names for config in [each for each in configs if each.get("format") == name][:3]]


def test_on_the_device(queue):
    """On a GPU that proves the instructions: integer and real data, all directions and formats."""
    info, solver, ran = runtime.device_info(queue.device), SOLVER, 0
    for text in ("mb2ic68ih14oc48", "mb3ic72ih7oc36", "mb2ic40ih15oc24sh2sw2"):
        for direction, layout, math in itertools.product(DIRECTIONS, LAYOUTS, ("float32", "ieee", "tf32")):
            problem = ConvProblem.parse(f"{direction}_f32_{text}kh1").replace(layout=layout, math=math)
            if solver.rejects(problem, info):
                continue
            ran += 1
            for config in _samples(solver.configs(problem, info)):
                check(queue, problem, config, emulate=False)
                real = {"tf32x3": 1e-6, "bf16x3": 1e-5, "tf32": 5e-4}[config.get("format", "tf32x3")]
                real = 5e-7 if math == "ieee" else real
                check(queue, problem, config, data="real", limit=real, emulate=False)
    if not ran:
        pytest.skip(f"no tensor cores that mma.sync reaches: {solver.rejects(ConvProblem(), info)}")
