"""nvidia.grouped: everything but the tensor cores' instructions runs on any device, in plain C stand-ins.

Plans run as ``plans.py`` says; integer data compare exactly.
"""

from __future__ import annotations

import pytest
from as_cuda import assembles_without_spills, needs_nvcc
from convdispatch_nvidia.grouped.plan import GroupedPlan, GroupedSumsPlan
from convdispatch_nvidia.grouped.tiling import GroupedSums, GroupedTile, GroupedTiling, SumsTile
from plans import LARGE, check_on_device, check_plan

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("item_by_item")

SOLVER = plugins().solvers["nvidia.grouped"]
# Groups of 4, 8, 16, 24 and 32; slabs that end inside a group; one group of several slabs; channels that fill no slab.
PRODUCTS = [
    ("fwd_f16_nhwc_g8mb2ic32ih6iw5oc32kh3ph1", {}),
    ("bwd_data_bf16_nhwc_g16mb1ic64ih5oc64kh3ph1", {"frag_m": 1, "turns": 2}),
    ("fwd_bf16_nhwc_g4mb1ic32ih5iw9oc32kh3ph1sh2", {"frag_m": 1}),
    ("fwd_f16_nhwc_g2mb1ic48ih7oc48kh3ph1+bias+residual+relu", {"warps": 2}),
    ("bwd_data_f16_nhwc_mb1ic32ih8iw7oc64kh3ph1sh2", {"turns": 2, "frag_m": 1}),
    ("bwd_data_f16_nhwc_mb2ic40ih9oc72kh3ph2dh2+accumulate", {}),
    ("fwd_bf16_nhwc_g8mb1ic16ih7oc24kh3ph1sh2", {"frag_m": 1, "warps": 2}),
    ("bwd_data_f16_nhwc_g4mb1ic16ih9oc16kh1sh2", {"frag_m": 1}),  # phases that no output reads are zeros
    ("fwd_f16_nhwc_g2mb3ic8ih5oc8kh3ph1", {"frag_m": 1}),
]
SUMS = [
    ("bwd_weights_f16_nhwc_g8mb2ic32ih6iw5oc32kh3ph1", {"parts": 2, "split": 2}),
    ("bwd_weights_bf16_nhwc_g4mb1ic64ih5oc64kh3ph1", {"parts": 1, "split": 3, "places": 64}),
    ("bwd_weights_f16_nhwc_mb1ic32ih8oc64kh3ph1sh2", {"parts": 1, "places": 64}),
    ("bwd_weights_f16_nhwc_g2mb2ic48ih7oc24kh3dh2+accumulate", {"parts": 2, "places": 32}),
]


@pytest.mark.parametrize(("text", "config"), PRODUCTS, ids=[text for text, _ in PRODUCTS])
def test_emulated(queue, text, config):
    problem = ConvProblem.parse(text)
    assert SOLVER.limits(problem, LARGE) is None
    plan = GroupedPlan(queue.context, problem, config, emulate=True)
    check_plan(queue, problem, plan, f"{problem} {config}")
    check_plan(queue, problem, plan, f"{problem} {config}", data="real")


@pytest.mark.parametrize(("text", "config"), SUMS, ids=[text for text, _ in SUMS])
def test_emulated_weights(queue, text, config):
    problem = ConvProblem.parse(text)
    assert SOLVER.limits(problem, LARGE) is None
    plan = GroupedSumsPlan(queue.context, problem, config, emulate=True)
    assert plan.workspace_size == SOLVER.workspace(problem, LARGE, config)
    check_plan(queue, problem, plan, f"{problem} {config}")


@pytest.mark.parametrize(("text", "words"), [
    ("fwd_f16_g8mb2ic32ih6oc32kh3", "channels last"),
    ("fwd_f16_nhwc_g3mb2ic12ih6oc12kh3", "multiples of eight"),
    ("bwd_data_f16_nhwc_mb2ic16ih30oc16kh5sh5", "phases"),
    ("fwd_f16_nhwc_mb2ic256ih6oc16kh3", "bytes of pixels and weights"),
    ("bwd_weights_f16_nhwc_g8mb2ic32ih9oc32kh8", "7x7"),
])  # fmt: skip
def test_refused_in_words(text, words):
    assert words in SOLVER.limits(ConvProblem.parse(text), LARGE)
    assert "nvidia gpus" in SOLVER.rejects(ConvProblem.parse(text), DeviceInfo("some", "arm", "gpu", ""))


def test_the_first_configuration_is_the_cheapest():
    for direction in ("fwd", "bwd_data", "bwd_weights"):
        problem = ConvProblem.parse(f"{direction}_f16_nhwc_g32mb16ic256ih28oc256kh3ph1")
        costs = [SOLVER.cost(problem, LARGE, config) for config in SOLVER.configs(problem, LARGE)]
        assert costs == sorted(costs)
        assert len(costs) > 3


@needs_nvcc
@pytest.mark.parametrize(
    "text", ["fwd_f16_nhwc_g32mb16ic128ih56oc128kh3ph1", "bwd_data_f16_nhwc_mb4ic32ih64oc64kh3ph1sh2"]
)
def test_the_instructions_assemble(tmp_path, text):
    plan = GroupedPlan.__new__(GroupedPlan)
    plan.tiling, plan._emulate = GroupedTiling(ConvProblem.parse(text), GroupedTile(frag_m=4, warps=8)), False
    assembles_without_spills(plan.product_text(), "sm_90a", tmp_path)


@needs_nvcc
def test_the_instructions_of_the_weights_gradient_assemble(tmp_path):
    tiling = GroupedSums(ConvProblem.parse("bwd_weights_f16_nhwc_g32mb16ic128ih56oc128kh3ph1"), SumsTile(10, 2))
    assembles_without_spills(GroupedSumsPlan.sums_text(tiling, False), "sm_90a", tmp_path)


def test_on_the_device(queue):
    texts = [text for text, _ in PRODUCTS + SUMS]
    check_on_device(queue, SOLVER, texts, {}, {"data": "real"})
