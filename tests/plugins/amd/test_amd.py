"""The amd plugin: its instructions as AMD's documents describe them, in plain C on any device; and AMD's own compiler.

Plans run as ``plans.py`` says; integer data compare exactly.
"""

from __future__ import annotations

import pytest
from convdispatch_amd.solver import INSTRUCTIONS, AmdTile
from emulated_tiles import LAYOUTS
from matrix_tiles import check, check_layout, compiles_for_amd

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.policy import Policy
from convdispatch.selection.choice.ranking import rank, refusal
from convdispatch.selection.plugins import verdicts
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("item_by_item")

DEVICES = {
    name: DeviceInfo(
        f"{name}:xnack-",
        "amd",
        "gpu",
        name,
        compute_units=104,
        max_work_group_size=256,
        max_work_item_sizes=(256, 256, 256),
        local_mem_size=65536,
        fp16=True,
        global_mem_size=64 << 30,
        max_alloc_size=16 << 30,
    )
    for name in ("gfx90a", "gfx942", "gfx1100", "gfx1201")
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_description_is_the_makers(name):
    check_layout(INSTRUCTIONS[name], LAYOUTS[name])


CASES = [
    ("fwd_f32_mb2ic12ih6iw5oc18kh3ph1+bias+residual+relu", "mfma32", {"format": "bfloat3", "compensated": True}),
    ("fwd_f32_nhwc_mb2ic40ih6iw5oc17kh3ph1+accumulate", "mfma16", {"format": "half2", "split": 2}),
    ("fwd_f16_nhwc_mb2ic40ih6iw5oc40kh3ph1sh2+bias", "wmma_gfx11", {}),
    ("fwd_bf16_nhwc_mb2ic16ih6iw5oc16kh3ph1", "wmma_gfx12", {"window": True}),
    ("bwd_data_f32_mb2ic10ih7iw6oc12kh3ph1sh2sw2", "mfma16", {}),
    ("bwd_data_f16_nhwc_mb2ic24ih5iw6oc16kh3ph1g2", "mfma32", {}),
    ("bwd_data_f32_mb1ic9ih9iw9oc8kh4ph1sh2sw2dh2dw3+constant", "wmma_gfx12", {}),
    ("bwd_weights_f32_nhwc_mb3ic10ih5iw6oc12kh3ph1g2+accumulate", "mfma32", {"split": 2}),
    ("bwd_weights_bf16_mb2ic3ih11iw9oc12kh3ph1sh2", "mfma16", {}),
    ("bwd_weights_f16_nhwc_mb2ic16ih6iw6oc8kh3ph1", "wmma_gfx11", {}),
    ("bwd_weights_f32_mb2ic8ih6iw6oc8kh3ph1", "wmma_gfx12", {"format": "half2"}),
]


@pytest.mark.parametrize(("text", "engine", "extra"), CASES, ids=[f"{e}-{t}" for t, e, _ in CASES])
def test_emulated(queue, text, engine, extra):
    check(queue, text, AmdTile, {"engine": engine, **extra})


@pytest.mark.parametrize(("name", "limit"), [("bfloat2", 8e-6), ("half2", 2.5e-7), ("bfloat3", 2.5e-7)])
def test_accuracy_of_formats(queue, name, limit):
    check(queue, "fwd_f32_mb1ic24ih6iw6oc16kh3ph1", AmdTile, {"engine": "mfma16", "format": name}, limit=limit)


@pytest.mark.parametrize("arch", DEVICES)
def test_amds_compiler_takes_the_texts(arch, full):
    name = "mfma" if arch in ("gfx90a", "gfx942") else "wmma"
    compiles_for_amd(DEVICES[arch], plugins().solvers[f"amd.{name}"], full)


def test_subnormal_halves_are_refused_where_they_count_as_zero():
    solver, problem = plugins().solvers["amd.mfma"], ConvProblem.parse("fwd_f16_mb1ic64ih8oc64kh3ph1")
    assert "subnormal float16" in solver.rejects(problem, DEVICES["gfx90a"])
    assert solver.rejects(problem, DEVICES["gfx942"]) is None
    single = problem.replace(dtype="float32", math="ieee")
    assert {config["format"] for config in solver.configs(single, DEVICES["gfx90a"])} == {"bfloat3"}


def test_chosen_by_name_alone_until_it_was_verified_here(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path))
    verdicts.refresh()
    problem, device, name = ConvProblem.parse("fwd_f32_mb8ic64ih14oc64kh3ph1"), DEVICES["gfx942"], "amd.mfma"
    solver = plugins().solvers[name]
    status, reason = refusal(solver, problem, device, Policy())
    assert status == "refused"
    assert "convdispatch verify amd" in reason
    assert name not in {each.solver.name for each in rank(problem, device)}
    assert refusal(solver, problem, device, Policy(solver="amd.*")) is None
    verdicts.trust("amd", plugins().fingerprint(name))
    assert refusal(solver, problem, device, Policy()) is None
    assert plugins().never_run("nvidia") is None
    verdicts.refresh()
