"""What solvers answer for tensors of more elements than 32 bits count, of which nobody here has the memory: a reason,
or configurations with costs, at once. One that raises is blamed in a warning, and set aside."""

from __future__ import annotations

import dataclasses
import random
import time
import warnings

import pytest
from checking import call, make_operands
from processors import device_of

import convdispatch as cd
from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.errors import InvalidProblem
from convdispatch.selection.plugins.loader import plugins
from convdispatch.selection.solver_query import query

MEMORY = 2048 << 30
NVIDIA = DeviceInfo(
    "NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132, max_work_group_size=1024, simd_width=32,
    max_work_item_sizes=(1024, 1024, 64), local_mem_size=49152, global_mem_size=MEMORY, max_alloc_size=MEMORY,
    fp64=True,
)  # fmt: skip
DEVICES = {
    "cpu": dataclasses.replace(device_of("avx512"), global_mem_size=MEMORY, max_alloc_size=MEMORY),
    "nvidia": NVIDIA,
    "amd": dataclasses.replace(NVIDIA, name="MI300", vendor="amd", arch="gfx942", simd_width=64),
}
PATIENCE_S = 20.0
"""A solver that counts place by place takes minutes for these."""

KNOWN = (
    "fwd_f16_mb2000ic2ih1040oc1kh1",
    "bwd_weights_f16_mb2000ic2ih1040oc1kh1",
    "bwd_weights_f64_nhwc_fast_mb70000ic1ih256iw4096oc1kh1kw1",
    "bwd_data_f16_mb1ic1iw8589934592oc1kw5+constant",
    "fwd_f32_g65536mb1048576ic131072ih65536iw7oc4194304kh1kw1",
    "fwd_bf16_nhwc_mb256ic11ih2147483649iw4096oc64kh1kw7sh2sw1ph1pw3dh1dw2+bias",
    "bwd_data_f32_mb2ic5ih2147483648iw2oc7kh1kw1ph1pw0+bias+constant",
    "bwd_weights_f32_ieee_mb4ic3id4ih2147483649iw4096oc3kd1kh2kw5sd3sh1sw1pd0ph1pw2",
    "bwd_data_bf16_nhwc_tf32_g65536mb16ic65536000iw268435459oc196608kw7+bias",
    # No tap reaches the image.
    "bwd_data_f32_nhwc_g64mb4ic64ih7iw1oc64kh3kw1sh1sw3ph0pw1",
    "bwd_data_f32_g64mb4ic64ih1iw1oc64kh1kw1sh3sw3ph1pw1",
)
SIZES = (
    1,
    1,
    1,
    2,
    3,
    4,
    7,
    16,
    64,
    1000,
    4096,
    65536,
    1 << 20,
    1 << 24,
    (1 << 28) + 3,
    1 << 31,
    (1 << 31) + 1,
    1 << 33,
)
CHANNELS = (1, 1, 1, 2, 3, 5, 7, 16, 64)


def drawn(seed: int) -> ConvProblem:
    """A convolution whose tensors may be of any size."""
    pick = random.Random(seed).choice
    while True:
        ndim, g = pick([1, 2, 2, 3]), pick([1, 1, 1, 2, 16, 64, 512])
        depthwise = pick([True, False])
        numbers = {"ndim": ndim, "g": g, "mb": pick(SIZES[:-5])}
        numbers |= {name: g * (1 if depthwise else pick(CHANNELS)) for name in ("ic", "oc")}
        for axis in "dhw"[3 - ndim :]:
            numbers |= {
                f"i{axis}": pick(SIZES),
                f"k{axis}": pick([1, 1, 2, 3, 5, 7, 16]),
                f"s{axis}": pick([1, 1, 2, 3]),
            }
            numbers |= {f"p{axis}": pick([0, 0, 1, 3]), f"d{axis}": pick([1, 1, 1, 2])}
        words = {"direction": pick(["fwd", "bwd_data", "bwd_weights"]), "layout": pick(["nchw", "nhwc"])}
        words |= {"dtype": pick(["float32", "float16", "float64", "bfloat16"])}
        words |= {"math": pick(["float32", "ieee", "tf32", "fast"])}
        words |= {"constant_weights": pick([True, False])}
        if pick([False] * 6 + [True]):
            words = {"dtype": pick(["int8", "uint8"]), "out_dtype": pick(["int8", "int32", "float32"])}
        try:
            return ConvProblem(**numbers, **words)
        except InvalidProblem:
            continue


def check(problem: ConvProblem, device: DeviceInfo) -> None:
    for name, solver in plugins().solvers.items():
        begin = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answers = query(solver, problem, device)
            for config in (*answers.configs[:3], *answers.configs[-2:]):
                answers.cost(config)
                answers.workspace(config)
        assert answers.fault is None, f"{name} for {problem} on {device.type}: {answers.fault}"
        assert time.monotonic() - begin < PATIENCE_S, f"{name} for {problem}"


@pytest.mark.parametrize("text", KNOWN)
@pytest.mark.parametrize("kind", DEVICES)
def test_known_ones(kind, text):
    check(ConvProblem.parse(text), DEVICES[kind])


@pytest.mark.parametrize("part", range(4))
def test_drawn_ones(part, full):
    for seed in range(part, 800 if full else 120, 4):
        for device in DEVICES.values():
            check(drawn(seed), device)


@pytest.mark.parametrize("text", KNOWN[:2])
def test_an_explanation_blames_nobody(text):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert " runs" in str(cd.explain(text))
    assert not seen


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("text", ["fwd_f32_mb3ic8ih4oc6kh1", "bwd_data_f32_g2mb3ic8ih4oc6kh1",
                                  "bwd_weights_f32_mb3ic8ih4oc6kh1", "bwd_weights_f16_mb3ic8ih4oc6kh1"])  # fmt: skip
def test_products_that_are_cut_are_right(monkeypatch, layout, text):
    """As with more places than a product's side counts, which here are 20."""
    from convdispatch_implicitgemm.cpu import pointwise

    monkeypatch.setattr(pointwise, "_LONGEST_SIDE", 20)
    problem = ConvProblem.parse(text).replace(layout=layout)
    operands, expected = make_operands(problem)
    for solver in ("im2col", "implicitgemm.pointwise"):
        if solver == "im2col" or problem.direction != "bwd_weights":
            with cd.policy(solver=solver, fallback=False):
                assert (call(problem, operands.present()) == expected).all()
