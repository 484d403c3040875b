"""The intel_gpu plugin: DPAS as the extension's text describes it, in plain C on any device; and Intel's own compiler.

Plans run as ``plans.py`` says; integer data compare exactly.
"""

from __future__ import annotations

import pytest
from convdispatch_intel_gpu import EXTENSION
from convdispatch_intel_gpu.solver import INSTRUCTIONS, IntelTile
from emulated_tiles import LAYOUTS
from matrix_tiles import check, check_layout, compiles_for_intel

from convdispatch.api.device import DeviceInfo
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("item_by_item")

SOLVER = "intel_gpu.dpas"
DEVICES = {
    target: DeviceInfo(name, "intel", "gpu", name.lower(), compute_units=512, max_work_group_size=1024, fp16=True,
                       local_mem_size=65536, extensions=frozenset({EXTENSION}))
    for target, name in (("dg2", "Intel(R) Arc(TM) A770 Graphics"), ("pvc", "Intel(R) Data Center GPU Max 1550"))
}  # fmt: skip


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_description_is_the_makers(name):
    check_layout(INSTRUCTIONS[name], LAYOUTS[name])


@pytest.mark.parametrize(
    ("name", "engine"),
    [("Intel(R) Arc(TM) A380 Graphics", "dpas8"), ("Intel(R) Data Center GPU Flex 170", "dpas8"),
     ("Intel(R) Arc(TM) B580 Graphics", "dpas16"), ("Intel(R) Data Center GPU Max 1100", "dpas16")],
)  # fmt: skip
def test_sub_groups_by_name(name, engine):
    device = DeviceInfo(name, "intel", "gpu", name.lower())
    assert plugins().solvers[SOLVER].engines(device) == (engine,)


CASES = [
    ("fwd_f32_mb2ic12ih6iw5oc18kh3ph1+bias+residual+relu", "dpas8", {"format": "half2"}),
    ("fwd_f16_nhwc_mb2ic40ih6iw5oc40kh3ph1sh2+bias", "dpas16", {"split": 2}),
    ("bwd_data_bf16_nhwc_mb2ic24ih5iw6oc16kh3ph1g2", "dpas8", {}),
    ("bwd_data_f32_mb2ic10ih7iw6oc12kh3ph1sh2sw2", "dpas16", {}),
    ("bwd_weights_f32_nhwc_mb3ic10ih5iw6oc12kh3ph1g2+accumulate", "dpas8", {"split": 2}),
    ("bwd_weights_f16_nhwc_mb2ic16ih6iw6oc8kh3ph1", "dpas16", {}),
]


@pytest.mark.parametrize(("text", "engine", "extra"), CASES, ids=[f"{e}-{t}" for t, e, _ in CASES])
def test_emulated(queue, text, engine, extra):
    check(queue, text, IntelTile, {"engine": engine, **extra})


@pytest.mark.parametrize("target", DEVICES)
def test_intels_compiler_takes_the_texts(target, tmp_path, full):
    compiles_for_intel(DEVICES[target], plugins().solvers[SOLVER], target, tmp_path, full)
