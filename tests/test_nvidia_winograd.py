"""nvidia.winograd: transforms, planes, products and their way out, with the tensor cores replaced by plain C."""

from __future__ import annotations

import pytest
from convdispatch_nvidia.winograd.job import Points
from convdispatch_nvidia.winograd.plan import WinogradPlan
from plans import check_plan

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo

pytestmark = pytest.mark.usefixtures("item_by_item")

HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
SMALL = {"bm": 64, "bn": 64, "wm": 1, "wn": 1, "format": "half2"}
CASES = [
    # problem, what the configuration adds
    ("fwd_f32_mb2ic32ih8iw8oc32kh3ph1", {"bn": 32}),
    ("fwd_f32_mb1ic40ih9iw7oc72kh3ph0+bias+residual+relu", {}),
    ("fwd_f32_mb3ic32ih5iw12oc32kh3ph2pw0ph_r1pw_r1+accumulate", {"pieces": 2}),
    ("fwd_f32_mb1ic72ih6iw6oc40kh3ph1+constant", {"bn": 24, "promote": 3}),
    ("fwd_f32_mb2ic32ih4iw4oc32kh3ph1", {"format": "bfloat3", "bn": 32}),
    ("bwd_data_f32_mb2ic40ih7iw10oc32kh3ph1", {}),
    ("bwd_data_f32_mb1ic32ih6iw6oc72kh3ph2pw1+constant", {"bn": 32}),
    ("bwd_weights_f32_mb2ic40ih9iw8oc72kh3ph1", {}),
    ("bwd_weights_f32_mb8ic32ih12iw13oc32kh3ph0pw1+accumulate", {"split": 2}),
]


@pytest.mark.parametrize(("text", "extra"), CASES, ids=[text for text, _ in CASES])
def test_emulated(queue, text, extra):
    """Real data: an error within what float32 promises; and where sums are short, far below it."""
    problem, config = ConvProblem.parse(text), {**SMALL, **extra}
    assert Points.of(problem, config).job.misfit is None
    plan = WinogradPlan(queue.context, problem, config, emulate=True)
    check_plan(queue, problem, plan, f"{problem} {config}", data="real", limit=2e-6)
