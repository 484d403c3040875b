"""int8: each solver's bits are the reference's, on shapes at and beside the borders of its tiles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from as_amx import plain_c

from convdispatch import ConvProblem, Quantization, constant, conv, policy
from convdispatch.api import DeviceInfo
from convdispatch.api.declared import outside_declaration
from convdispatch.api.policy import current_policy
from convdispatch.device import runtime
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.selection.choice.ranking import reasons
from convdispatch.selection.plugins.loader import plugins

SOLVERS = ("int8.direct", "int8.words", "int8.depthwise", "int8.interleaved", "int8.vnni", "int8.amx")
DENSE = [
    "u8s8u8_nhwc_mb2ic64ih9iw8oc32kh3ph1",
    "u8s8s8_nhwc_mb1ic65ih9iw8oc33kh3ph1+residual",
    "s8s8u8_nhwc_mb1ic63ih7iw7oc31kh3ph1ph_r0pw_r2+constant",
    "s8s8s32_nhwc_mb1ic5ih11iw9oc17kh2kw3sh2sw3ph1pw1+residual",
    "u8s8f32_nhwc_mb1ic20ih12iw13oc40kh3kw3dh2dw3ph2pw3+residual",
    "u8s8f16_nhwc_mb1ic24ih9iw9oc48kh5ph2sh3",
    "s8s8s8_mb2ic18ih9iw33oc35kh3ph1+residual+constant",
    "u8s8u8_mb1ic3ih19iw20oc8kh7ph3sh2",
    "u8s8u8_nhwc_mb3ic64ih7oc64kh1+constant",
    "u8s8u8_nhwc_mb1ic67ih5oc70kh1+residual",
    "s8s8u8_nhwc_mb2ic4ih5oc16kh1",
    "u8s8u8_nhwc_mb1ic300oc1000ih1kh1+constant",
    "u8s8s32_nhwc_mb2ic32ih9oc32kh1sh2",
    "u8s8u8_nhwc_g3mb1ic24ih8oc36kh3ph1",
    "s8s8f32_g2mb1ic6ih8oc10kh3ph1",
    "u8s8u8_nhwc_mb1ic16id4ih5iw6oc24kd3kh3kw2pd1ph1+residual",
    "s8s8u8_nhwc_mb2ic7iw31oc9kw5pw2sw2",
    "u8s8u8_nhwc_mb1ic8ih1iw1oc8kh3ph1",
]
DEPTHWISE = [
    "u8s8u8_nhwc_g16mb2ic16ih9iw14oc16kh3ph1",
    "s8s8s8_nhwc_g17mb1ic17ih9iw13oc17kh3ph1sh2+residual",
    "u8s8f32_nhwc_g40mb1ic40ih12iw30oc40kh5ph2+constant",
    "s8s8s32_nhwc_g31mb1ic31ih8iw9oc31kh3kw2dh2dw2ph2pw1",
    "u8s8u8_nhwc_g48mb2ic48ih9iw11oc48kh3ph1+constant",
    "s8s8s8_nhwc_g96mb1ic96ih10iw13oc96kh5ph2sh2+constant",
    "u8s8s8_nhwc_g80mb1ic80ih7iw7oc80kh5ph2",
    "u8s8u8_nhwc_g16mb1ic16ih1iw3oc16kh3ph1",
    "s8s8u8_nhwc_g64mb1ic64ih8iw18oc64kh3ph1ph_r0pw_r2sh1sw2",
    "u8s8u8_nhwc_g32mb1ic32id4ih6iw6oc32kd3kh3kw2pd1ph1",
    "u8s8s8_nhwc_g12mb2ic12ih5iw9oc12kh3kw3dh2ph2pw1sw2+residual",
    "u8s8u8_nhwc_g33mb1ic33id3ih5iw6oc33kd2kh3kw3ph1pw1",
]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("text", DENSE + DEPTHWISE)
def test_bits_are_the_references(queue, solver, text):
    problem, device = ConvProblem.parse(text), runtime.device_info(queue.device)
    chosen = plugins().solvers[solver]
    refused = chosen.rejects(problem, device)
    if refused is not None:
        pytest.skip(refused)
    for config in list(chosen.configs(problem, device))[:2]:
        assert chosen.cost(problem, device, config) > 0
        stated = chosen.workspace(problem, device, config)
        Examination(chosen, problem, config, stated, queue).run(False)


MATRIX = [
    "u8s8u8_nhwc_mb2ic64ih5iw7oc32kh3ph1",
    "s8s8s8_nhwc_mb1ic65ih5iw8oc49kh3ph1+residual",
    "u8s8u8_nhwc_mb3ic70ih4iw5oc20kh1+residual+constant",
    "u8s8s32_nhwc_mb1ic16ih7iw6oc33kh2kw3sh2ph1",
    "s8s8f32_g2mb1ic6ih6oc10kh3ph1+residual",
    "u8s8u8_nhwc_mb1ic3ih9oc8kh3ph_r2pw_r1dh2dw1",
]
"""Whole tiles and what is left of them: positions below 16 and above, channels too; in place, from bands, by groups."""


@pytest.mark.parametrize("text", MATRIX)
def test_matrix_registers_bits_are_the_references(queue, cpu, monkeypatch, text):
    """``int8.amx``, whose instructions are plain C where the processor has none."""
    problem, chosen = ConvProblem.parse(text), plugins().solvers["int8.amx"].solver
    assert chosen.rejects(problem, cpu) is None
    config = next(iter(chosen.configs(problem, cpu)))
    with plain_c(monkeypatch):
        Examination(chosen, problem, config, chosen.workspace(problem, cpu, config), queue).run(False)


FLOAT8 = ", float8_e4m3, float8_e5m2"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "text", ["mb2ic32ih8oc32kh3ph1", "bf16_nhwc_g32mb1ic32ih8oc32kh3ph1", "bwd_data_mb1ic32ih8oc32kh1"]
)
def test_floating_point_is_refused(queue, solver, text):
    """By the declaration, whatever the machine has: the kernels know no floats."""
    problem, chosen = ConvProblem.parse(text), plugins().solvers[solver]
    assert (
        outside_declaration(chosen, problem, runtime.device_info(queue.device))
        == f"int8, uint8{FLOAT8 if solver == 'int8.direct' else ''} only, got {problem.dtype}"
    )
    assert chosen.rejects(problem, runtime.device_info(queue.device)) is not None


def test_solvers_of_floating_point_are_not_asked():
    problem = ConvProblem.parse("u8s8u8_nhwc_mb1ic64ih9oc64kh3ph1")
    device = DeviceInfo("one", "nvidia", "gpu", "sm_90", fp16=True, fp64=True)
    found = reasons(problem, device, current_policy())
    assert found["im2col"] == "float32, float64, float16, bfloat16 only, got uint8"
    assert "int8.direct" not in found


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_largest_sums_are_exact(queue, dtype):
    """Sums beyond 2**24 are no whole numbers of float32: every product at its largest, of 1100 channels."""
    problem = ConvProblem(
        mb=1, ic=1100, ih=3, iw=3, oc=40, kh=3, kw=3, ph=1, pw=1, layout="nhwc", dtype=dtype, out_dtype="int32"
    )
    limits, device = np.iinfo(dtype), runtime.device_info(queue.device)
    x = np.full(problem.x_shape, limits.max, dtype)
    w = np.full(problem.w_shape, -128, np.int8)
    for solver in SOLVERS:
        if plugins().solvers[solver].rejects(problem, device) is not None:
            continue
        with policy(solver=solver):
            y = conv(x, w, quantization=Quantization(x_zero_point=limits.min), padding=1, layout="nhwc")
        assert y[0, 1, 1, 0] == -128 * 255 * 9 * 1100
        assert y[0, 0, 0, 39] == -128 * 255 * 4 * 1100


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_product_of_two_bytes_is_exact(queue, solver, dtype):
    """Every x times every w, by each solver: dense (sums of two channels) and depthwise, plain and packed weights."""
    limits, device = np.iinfo(dtype), runtime.device_info(queue.device)
    values, weights = np.arange(limits.min, limits.max + 1), np.arange(-128, 128)
    x_of = {False: np.stack([values, values[::-1]], 1), True: np.repeat(values[:, None], 256, 1)}
    w_of = {False: np.stack([weights, weights[::-1]], 1), True: weights[:, None]}
    tried = 0
    for depthwise, layout, zero in itertools.product((False, True), ("nhwc", "nchw"), (limits.min, 3, limits.max)):
        x = x_of[depthwise].reshape(1, 16, 16, -1)
        x = np.ascontiguousarray(x if layout == "nhwc" else x.transpose(0, 3, 1, 2)).astype(dtype)
        w = w_of[depthwise].reshape((256, 1, 1, -1) if layout == "nhwc" else (256, -1, 1, 1)).astype(np.int8)
        whole = (values - zero)[:, None] * weights if depthwise else (x_of[False] - zero) @ w_of[False].T
        exact = whole.reshape(1, 16, 16, 256)
        exact = exact if layout == "nhwc" else exact.transpose(0, 3, 1, 2)
        groups = 256 if depthwise else 1
        problem = ConvProblem(
            mb=1, ic=256 if depthwise else 2, ih=16, iw=16, oc=256, kh=1, kw=1, g=groups, layout=layout, dtype=dtype,
            out_dtype="int32",
        )  # fmt: skip
        if plugins().solvers[solver].rejects(problem, device) is not None:
            continue
        for given in (w, constant(w)):
            with policy(solver=solver):
                y = conv(x, given, quantization=Quantization(x_zero_point=zero), groups=groups, layout=layout)
            np.testing.assert_array_equal(y, exact, err_msg=f"{problem} {zero}")
            tried += 1
    if not tried:
        pytest.skip("takes none of these on this device")
