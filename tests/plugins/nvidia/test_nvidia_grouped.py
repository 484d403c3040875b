"""nvidia.grouped: everything but the tensor cores' instructions runs on any device, in plain C stand-ins.

Plans run as ``plans.py`` says; integer data compare exactly.
"""

from __future__ import annotations

import pytest
from convdispatch_nvidia.grouped.solver import GroupedPlan, GroupedSumsPlan
from plans import LARGE, check_on_device, check_plan

from convdispatch import ConvProblem
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


@pytest.mark.parametrize(("text", "config"), PRODUCTS + SUMS, ids=[text for text, _ in PRODUCTS + SUMS])
def test_emulated(queue, text, config):
    problem, is_sum = ConvProblem.parse(text), text.startswith("bwd_weights")
    assert SOLVER.limits(problem, LARGE) is None
    plan = (GroupedSumsPlan if is_sum else GroupedPlan)(queue.context, problem, config, emulate=True)
    assert not is_sum or plan.workspace_size == SOLVER.workspace(problem, LARGE, config)
    for data in ("integer",) if is_sum else ("integer", "real"):
        check_plan(queue, problem, plan, f"{problem} {config}", data=data)


def test_on_the_device(queue):
    texts = [text for text, _ in PRODUCTS + SUMS]
    check_on_device(queue, SOLVER, texts, {}, {"data": "real"})
