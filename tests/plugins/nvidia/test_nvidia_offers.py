"""What nvidia's solvers offer and refuse, on a described H200, and what NVIDIA's assembler makes of their kernels."""

from __future__ import annotations

import dataclasses
import itertools
from fnmatch import fnmatchcase

import pytest
import shape_tables
from as_cuda import assembles_without_spills, needs_nvcc
from convdispatch_nvidia.direct.choice import FORMATS_OF_MATH
from convdispatch_nvidia.direct.solver import DirectPlan
from convdispatch_nvidia.grouped.solver import GroupedPlan, GroupedSumsPlan
from convdispatch_nvidia.int8.solver import Int8Plan
from convdispatch_nvidia.packed.plan import NvidiaPlan
from convdispatch_nvidia.probe import refusal

from convdispatch import ConvProblem
from convdispatch.api.declared import outside_declaration
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.device.matrix_tiles.instruction import formats
from convdispatch.device.programs.kernels import rendering
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tools.targets.described import described_context

HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
CPU = DeviceInfo("a cpu", "pocl", "cpu", "simd512")
BOTH = [{"layout": layout} for layout in LAYOUTS]
OFFERED = {
    # shape tables, changes to their problems, every how many of them without --full, fewest that are accepted
    "wgmma": (("near_miss", "resnet50"), BOTH, 5, 10),
    "mma": (("near_miss", "resnet50"), BOTH, 5, 10),
    "direct": (("near_miss", "resnet50", "googlenet"),
               [{**layout, "math": math} for layout in BOTH for math in ("float32", "ieee", "tf32")], 5, 50),
    "winograd": (("near_miss", "vgg_a", "googlenet"), [{}], 1, 15),
}  # fmt: skip


def solver_of(name):
    return plugins().solvers[f"nvidia.{name}"]


@pytest.mark.parametrize("name", OFFERED)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_configuration_fits(full, name, direction):
    """Every offered tile fits, all formats are offered, and the first one's workspace is what its plan lays out."""
    tables, forms, every, least = OFFERED[name]
    solver, every, seen = solver_of(name), 1 if full else every, 0
    ways = itertools.product(itertools.chain(*map(shape_tables.load, tables)), forms)
    for entry, form in itertools.islice(ways, DIRECTIONS.index(direction) % every, None, every):
        problem = entry.problem.replace(direction=direction, **form)
        if not problem.mb or solver.limits(problem, HOPPER):
            continue
        seen, configs = seen + 1, list(solver.configs(problem, HOPPER))
        tilings = [getattr(tiling, "tiling", tiling) for tiling in (solver.tiling(problem, c) for c in configs)]
        assert [tiling.misfit for tiling in tilings] == [None] * len(configs), problem
        tiles = [tiling.tile for tiling in tilings]
        expected = {"direct": FORMATS_OF_MATH.get(problem.math), "winograd": ("half2",)}.get(name, formats(problem))
        assert {tile.format for tile in tiles} == set(expected), problem
        assert all(solver.cost(problem, HOPPER, config) > 0 for config in configs[:3])
        with rendering():
            plan = solver.plan(described_context(HOPPER), problem, configs[0])
        assert solver.workspace(problem, HOPPER, configs[0]) == plan.workspace_size, problem
        if name == "direct":
            ieee = problem.math == "ieee"
            assert not any(ieee and tile.flush_every for tile in tiles)
            assert {tile.compensated for tile in tiles} == {ieee and tilings[0].k > 512}, problem
    assert seen > least


FASTEST = {
    "int8": ["u8s8u8_nhwc_mb32ic64ih56oc64kh3ph1", "u8s8u8_nhwc_mb32ic256ih56oc64kh1+constant",
             "u8s8u8_nhwc_mb32ic512ih28oc1024kh1sh2+residual", "s8s8s8_nhwc_mb1ic512ih7oc512kh3ph1+constant",
             "u8s8f32_nhwc_mb8ic24ih28oc144kh1", "s8s8s32_nhwc_g32mb4ic256ih14oc256kh3ph1",
             "f8_e4m3f8_e4m3f8_e4m3_nhwc_mb32ic256ih28oc256kh3ph1+constant",
             "f8_e5m2f8_e5m2bf16_nhwc_mb8ic512ih14oc1024kh1+residual"],
    "grouped": [f"{direction}_f16_nhwc_g32mb16ic256ih28oc256kh3ph1" for direction in DIRECTIONS],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in FASTEST.items() for text in texts])
def test_the_first_configuration_is_the_cheapest(name, text):
    """Of those that are offered for real layers, each of which can be built."""
    problem, solver = ConvProblem.parse(text), solver_of(name)
    configs = [dict(config) for config in solver.configs(problem, HOPPER)]
    costs = [solver.cost(problem, HOPPER, config) for config in configs]
    assert len(configs) > (8 if name == "int8" else 3)
    assert 1e-6 < costs[0] == min(costs)
    assert name == "int8" or costs == sorted(costs)
    for config in configs:
        assert solver.tiling(problem, config).misfit is None, config
        assert name != "int8" or solver.workspace(problem, HOPPER, config) >= problem.oc * 4 * (
            not problem.constant_weights
        )


HUGE = "ic1024ih4096iw4096oc1024"
REFUSED = {
    # by solver, problems and what refuses each, None if nothing does; * stands for any words
    "wgmma": {
        "fwd_f32_mb4ic64ih14oc64kh3ph1": None,
        "fwd_f32_g64mb4ic64ih14oc64kh3ph1": "4 channels a group or more, got 1",
        "fwd_f32_mb0ic64ih14oc64kh3ph1": "1 image or more, got 0",
        # 16 * 16 padded places of 8 chunks an image
        "fwd_f32_mb1100000ic64ih14oc64kh3ph1": "at most 2147483647 chunks or columns, got 2252800000",
        "fwd_f32_mb1000000ic64ih14oc64kh3ph1": None,
        f"fwd_f32_mb1048576{HUGE}kh3ph1": "at most 281474976710656 bytes, got *",
    },
    "mma": {f"fwd_f32_mb1048576{HUGE}kh3ph1": "at most 281474976710656 bytes, got *"},
    "direct": {
        "fwd_f32_mb4ic64ih14oc64kh1": None,
        "fwd_f32_mb4ic64ih14oc64kh1sh2": None,
        "fwd_f32_ieee_mb4ic64ih14oc64kh1": None,
        "fwd_f32_mb4ic64ih14oc64kh3kw1": "1x1 kernels only, got 3x1",
        "fwd_f32_mb4ic64ih14iw14oc64kh1kw1pw1": "no padding, got 1",
        "fwd_f32_g64mb4ic64ih14oc64kh1": "4 channels a group or more, got 1",
        "fwd_f32_mb0ic64ih14oc64kh1": "1 image or more, got 0",
        "fwd_f32_mb67108864ic64ih14oc64kh1": "at most 2147483647 chunks or columns*",
        f"fwd_f32_mb1048576{HUGE}kh1": "at most 281474976710656 bytes, got *",
    },
    "winograd": {
        "fwd_f32_ieee_mb2ic32ih6oc32kh3ph1": "*math float32 only*",
        "fwd_f32_mb2ic64ih6oc64kh3ph1g2": "*1 group*",
        "fwd_f32_mb2ic32ih6oc32kh5ph2": "*3x3 kernels only, got 5x5*",
        "fwd_f32_mb2ic32iw6oc32kw3pw1": "*3x3 kernels only, got 3*",
        "fwd_f32_mb2ic32ih6oc32kh3ph1sh2sw2": "*stride*",
        "bwd_data_f32_mb2ic32ih6oc32kh3ph1dh2dw2": "*dilation*",
        "fwd_f32_mb2ic36ih6oc32kh3ph1": "*multiples of 8, got 36*",
        "fwd_f32_mb2ic4ih6oc32kh3ph1": "*8 channels or more*",
        "fwd_f32_mb2ic8192ih6oc32kh3ph1": "*1e-5*",
        f"fwd_f32_mb1048576{HUGE}kh3ph1": "at most 281474976710656 bytes, got *",
    },
    "int8": {
        "u8s8u8_mb1ic32ih6oc32kh3ph1": "channels last only, got nchw",
        "u8s8u8_nhwc_mb1ic3ih6oc32kh3ph1": "channels a group in multiples of 4, got 3",
        "u8s8u8_nhwc_g8mb1ic16ih6oc32kh3ph1": "channels a group in multiples of 4, got 2",
        "u8s8u8_nhwc_g32mb1ic32ih6oc32kh3ph1": "more than 1 channel a group, got depthwise",
        "f8_e4m3f8_e4m3f32_nhwc_mb1ic32ih6oc32kh3ph1":
            "math tf32 or fast for float32 results, since Hopper sums float8 in 14 bits, got float32",
        "u8s8u8_nhwc_mb1000ic1024ih64oc64kh1sh8": "tensors of fewer than 2**31 elements, got 4194304000",
    },
    "grouped": {
        "fwd_f16_g8mb2ic32ih6oc32kh3": "*channels last*",
        "fwd_f16_nhwc_g3mb2ic12ih6oc12kh3": "*multiples of eight*",
        "bwd_data_f16_nhwc_mb2ic16ih30oc16kh5sh5": "*phases*",
        "fwd_f16_nhwc_mb2ic256ih6oc16kh3": "*bytes of pixels and weights*",
        "bwd_weights_f16_nhwc_g8mb2ic32ih9oc32kh8": "*7x7*",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name):
    """In words, before the device is asked anything; and no other device is served."""
    for text, sentence in REFUSED[name].items():
        problem = ConvProblem.parse(text)
        found = solver_of(name).limits(problem, HOPPER)
        assert found is None if sentence is None else fnmatchcase(found, sentence), (text, found)
        assert solver_of(name).rejects(problem, CPU) == "nvidia gpus only, got pocl cpu"


def test_winograd_declares_float32_alone():
    problem = ConvProblem.parse("fwd_f16_mb2ic32ih6oc32kh3ph1")
    assert outside_declaration(solver_of("winograd"), problem, HOPPER) == "float32 only, got float16"


@pytest.mark.parametrize("engine", ["wgmma", "direct"])
def test_a_device_is_probed_when_a_plan_needs_it(engine):
    assert refusal(HOPPER, engine) is None
    older = dataclasses.replace(HOPPER, arch="sm_75")
    assert refusal(older, engine) == "the device NVIDIA H200 is no longer listed"


PACKED = {"bm": 128, "wm": 2, "wn": 1, "format": "half2", "compensated": True}
WARPS = {"wm": 2, "wn": 2}
INT8 = {"bm": 128, "bn": 128, "wm": 2, "wn": 1, "bk": 128, "stages": 4}
BYTES = [
    ("sm_80", "u8s8u8", {**INT8, "bk": 64, "wn": 4}),
    ("sm_90a", "u8s8u8", {**INT8, "engine": "wgmma"}),
    ("sm_89", "f8_e4m3f8_e4m3f16", {**INT8, "bk": 64, "bn": 64, "wm": 4, "wn": 2}),
    ("sm_90a", "f8_e4m3f8_e4m3f8_e5m2", {**INT8, "engine": "wgmma"}),
    ("sm_90a", "f8_e5m2f8_e5m2f8_e4m3", {**INT8, "bn": 192, "engine": "tma"}),
    ("sm_90a", "f8_e4m3f8_e4m3f16", {**INT8, "bn": 256, "engine": "tma"}),
    ("sm_90a", "s8s8s8", {**INT8, "bn": 192, "engine": "tma"}),
    ("sm_90a", "f8_e4m3f8_e4m3f8_e4m3", {**INT8, "engine": "tma"}),
    ("sm_90a", "f8_e4m3f8_e4m3f8_e4m3", {**INT8, "engine": "halo"}),
]
ASSEMBLED = [
    # plan, architecture, problem, configuration; the widest tiles, whose sums take the most registers
    (NvidiaPlan, "sm_90a", "fwd_f32_ieee_mb64ic512ih28oc512kh3ph1",
     {**PACKED, "bn": 176, "window": True, "bk": 64, "stages": 2}),
    (NvidiaPlan, "sm_90a", "bwd_weights_f32_ieee_mb64ic512ih28oc512kh3ph1",
     {**PACKED, "bn": 192, "split": 11, "bk": 64, "stages": 2}),
    (DirectPlan, "sm_90", "fwd_f32_nhwc_mb64ic256ih56oc64kh1sh2", {**WARPS, "bm": 128, "bn": 64, "flush_every": 2}),
    (DirectPlan, "sm_90", "bwd_data_f32_mb128ic832ih7oc32kh1+bias+residual+relu", {**WARPS, "bm": 64, "bn": 64}),
    (DirectPlan, "sm_90", "bwd_data_f32_nhwc_mb64ic256ih55oc512kh1sh2+bias", {"bm": 128, "bn": 128, "wm": 2, "wn": 4}),
    (DirectPlan, "sm_90", "bwd_weights_f32_mb64ic258ih27iw2oc64kh1", {**WARPS, "bm": 64, "bn": 64, "split": 9}),
    (DirectPlan, "sm_90", "fwd_f32_mb64ic256ih56oc64kh1",
     {"bm": 64, "bn": 128, "wm": 2, "wn": 4, "format": "bf16x3"}),
    (GroupedPlan, "sm_90a", "fwd_f16_nhwc_g32mb16ic128ih56oc128kh3ph1", {"frag_m": 4, "warps": 8}),
    (GroupedPlan, "sm_90a", "bwd_data_f16_nhwc_mb4ic32ih64oc64kh3ph1sh2", {"frag_m": 4, "warps": 8}),
    (GroupedSumsPlan, "sm_90a", "bwd_weights_f16_nhwc_g32mb16ic128ih56oc128kh3ph1", {"parts": 10, "split": 2}),
    # a sum of few slices: no loop is unrolled into spills
    *[(Int8Plan, arch, f"{dtypes}_nhwc_mb32{layer}", config) for arch, dtypes, config in BYTES
      for layer in ("ic64ih56oc64kh3ph1", "ic384ih56oc256") if layer[-3:] == "ph1" or config.get("engine") != "halo"],
]  # fmt: skip
FURTHER = [
    (NvidiaPlan, "sm_90a", "bwd_weights_f32_ieee_mb64ic512ih28oc512kh3ph1",
     {**PACKED, "bn": 192, "split": 11, "bk": 32, "flush_every": 0}),
    (DirectPlan, "sm_90", "fwd_f32_mb64ic256ih56oc64kh1", {**WARPS, "bm": 64, "bn": 128}),
    (DirectPlan, "sm_90", "fwd_f32_tf32_mb64ic256ih56oc64kh1", {**WARPS, "bm": 64, "bn": 128, "format": "tf32"}),
]  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize(
    ("kind", "arch", "text", "config"),
    [*ASSEMBLED, *(pytest.param(*each, marks=pytest.mark.full) for each in FURTHER)],
)
def test_the_instructions_assemble(tmp_path, kind, arch, text, config):
    """The whole kernel with its instructions assembles, and its sums stay in registers."""
    with rendering():
        engine = ["wgmma"] if kind is NvidiaPlan else []
        plan = kind(described_context(HOPPER), ConvProblem.parse(text), config, *engine)
    # Registers move in whole programs alone, which the driver's loader assembles.
    linked = kind is Int8Plan and not getattr(plan.tiling, "moved_registers", None)
    assembles_without_spills(plan.product_text(), arch, tmp_path, linked=linked)
