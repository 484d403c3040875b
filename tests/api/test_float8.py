"""Floats of 8 bits: conversions bit by bit, ``conv`` with scales, the kit's cases, PyTorch's tensors, refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pyopencl as cl
import pytest

from convdispatch import (
    ConvProblem,
    InvalidArgument,
    InvalidProblem,
    Quantization,
    constant,
    conv,
    conv_backward_data,
    policy,
)
from convdispatch.api import build
from convdispatch.api.dtypes import FLOAT8, numpy_dtype, storage_macros
from convdispatch.device import runtime
from convdispatch.measurement import quantized, reference
from convdispatch.measurement.conformance import data
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.measurement.search.trialdata import error_limit
from convdispatch.selection.explanation import explain
from convdispatch.selection.plugins.loader import plugins

SOLVER = "int8.direct"
E4M3, E5M2 = map(numpy_dtype, FLOAT8)
TEXTS = [
    "f8_e4m3f8_e4m3f8_e4m3_nhwc_mb2ic17ih9iw8oc19kh3ph1",
    "f8_e4m3f8_e4m3f8_e5m2_mb1ic8ih7iw11oc5kh2kw3sh2sw3ph1pw1+residual",
    "f8_e5m2f8_e5m2f8_e5m2_nhwc_g2mb2ic6ih9iw8oc10kh3dh2dw3ph2+residual+constant",
    "f8_e5m2f8_e5m2f32_mb1ic33iw40oc7kw5pw2",
    "f8_e4m3f8_e4m3f16_nhwc_g8mb1ic8ih9oc8kh3ph1ph_r0+residual",
    "f8_e4m3f8_e4m3bf16_mb1ic4id3ih5iw6oc8kd2kh3kw3+residual",
]


def numbers(dtype):
    return np.arange(256, dtype=np.uint8).view(dtype)


def ran(queue, text, given, result):
    flags = cl.mem_flags
    source = cl.Buffer(queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=given)
    target = cl.Buffer(queue.context, flags.READ_WRITE, result.nbytes)
    cl.Kernel(build(queue.context, text), "k")(queue, (given.size,), None, source, target)
    cl.enqueue_copy(queue, result, target)
    return result


@pytest.mark.parametrize("name", FLOAT8)
def test_every_byte_is_read_and_every_number_rounded_as_ml_dtypes_does(queue, name):
    dtype, text = numpy_dtype(name), storage_macros(name, "float32")
    read = (
        text
        + "kernel void k(global const uchar *b, global float *v) { const int i = get_global_id(0); v[i] = LOAD(b, i); }"
    )
    wide = numbers(dtype).astype(np.float32)
    np.testing.assert_array_equal(ran(queue, read, numbers(np.uint8), np.empty(256, np.float32)), wide)
    finite = np.sort(wide[np.isfinite(wide)])
    largest = finite[-1]
    middles = (finite[1:] + finite[:-1]) / 2  # ties, and the numbers beside them
    values = np.concatenate([finite, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    values = np.concatenate([values, [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-30, largest * 1.03]]).astype(np.float32)
    write = text + "kernel void k(global const float *v, global uchar *b) { const int i = get_global_id(0); "
    write += f"b[i] = convert_{name}_as_uchar(v[i]); }}"
    got = ran(queue, write, values, np.empty(values.size, np.uint8)).view(dtype).astype(np.float32)
    wanted = np.clip(values, -largest, largest).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted) | (np.signbit(got) & np.isnan(got)))


@pytest.mark.parametrize("text", TEXTS)
def test_the_kit_passes(queue, text):
    problem, solver = ConvProblem.parse(text), plugins().solvers[SOLVER]
    assert ConvProblem.parse(str(problem)) == problem
    exact = data.data_for(problem, "integer", 1)
    assert all(np.abs(exact.operands[name].astype(np.float64)).max() <= 8 for name in "xw")
    assert len(np.unique(exact.expected)) > 20  # a result of zeros would show nothing
    examination = Examination(solver, problem, {}, None, queue)
    examination.run(False)


def drawn(seed, shape, dtype):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "out"),
    [(E4M3, "float8_e4m3"), (E4M3, "float16"), (E5M2, "float8_e5m2"), (E5M2, "bfloat16"), (E4M3, "float32")],
)
def test_conv_has_scales_bias_residual_and_activation(dtype, out):
    x, w = drawn(1, (2, 6, 9, 8), dtype), drawn(2, (8, 6, 3, 3), dtype)
    scales, bias = np.linspace(0.01, 0.1, 8).astype(np.float32), np.linspace(-1, 1, 8).astype(np.float32)
    residual = drawn(3, (2, 8, 9, 8), numpy_dtype(out))
    y_scale = {"y_scale": 0.02} if out in FLOAT8 else {}
    given = Quantization(0.5, w_scale=scales, dtype=out, residual_scale=0.25, **y_scale)
    y = conv(x, w, bias, padding=1, residual=residual, activation="relu6", quantization=given)
    assert y.dtype == numpy_dtype(out)
    problem = ConvProblem(mb=2, ic=6, ih=9, iw=8, oc=8, kh=3, kw=3, ph=1, pw=1)
    sums = reference.compute(problem, x=x, w=w)
    v = 0.5 * sums * scales.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1) + 0.25 * residual.astype(np.float64)
    v = np.clip(v, 0, 6)
    largest = float(ml_dtypes.finfo(y.dtype).max)
    wanted = np.clip(v / 0.02, -largest, largest).astype(y.dtype) if out in FLOAT8 else v.astype(y.dtype)
    assert reference.relative_error(y, wanted.astype(np.float64)) <= {"float32": 1e-6}.get(out, 1e-3)
    assert (y.astype(np.float64) == wanted.astype(np.float64)).mean() > (0.3 if out == "float32" else 0.98)
    into = np.empty_like(y)
    held = conv(x, constant(w), bias, padding=1, residual=residual, activation="relu6", quantization=given, out=into)
    assert held is into
    np.testing.assert_array_equal(into.view(np.uint8), y.view(np.uint8))


def test_a_nan_reaches_what_reads_it_and_infinity_saturates():
    x = np.ones((1, 1, 1, 5), E4M3)
    x[..., 2] = np.nan
    w = np.full((1, 1, 1, 1), 448, E4M3)
    y = conv(x, w, quantization=Quantization(dtype="float8_e4m3", y_scale=0.5)).astype(np.float32)
    np.testing.assert_array_equal(y.ravel(), [448, 448, np.nan, 448, 448])
    endless = conv(x.astype(np.float32).astype(E5M2), np.full((1, 1, 1, 1), np.inf, E5M2),
                   quantization=Quantization(dtype="float8_e5m2", y_scale=1.0)).astype(np.float32)  # fmt: skip
    np.testing.assert_array_equal(endless.ravel(), [57344, 57344, np.nan, 57344, 57344])


def test_pytorchs_tensors_are_taken_and_come_back():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    x, w = drawn(1, (1, 4, 6, 6), E4M3), drawn(2, (8, 4, 3, 3), E4M3)
    bias = np.linspace(-1, 1, 8).astype(np.float32)
    given = [torch.from_numpy(each.view(np.uint8)).view(torch.float8_e4m3fn) for each in (x, w)]
    for out in ("float8_e4m3", "float8_e5m2", "bfloat16", "float16", "float32"):
        scales = Quantization(0.5, w_scale=0.25, dtype=out, **({"y_scale": 0.125} if out in FLOAT8 else {}))
        y = conv(*given, torch.from_numpy(bias), padding=1, quantization=scales)
        assert y.dtype == getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(out, out))
        wanted = conv(x, w, bias, padding=1, quantization=scales)
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[y.itemsize]
        assert y.view(bits).numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, w: conv(x, w), "x must be of float32, float64, float16, bfloat16, got float8_e4m3"),
        (
            lambda x, w: conv(x, w.astype(E5M2), quantization=Quantization(dtype="float32")),
            "has w of float8_e4m3 too, got float8_e5m2",
        ),
        (
            lambda x, w: conv(x, w, quantization=Quantization()),
            "out_dtype must be one of float32, float16, bfloat16, float8_e4m3",
        ),
        (lambda x, w: conv(x, w, quantization=Quantization(x_zero_point=3, dtype="float32")), "no x_zero_point, got 3"),
        (lambda x, w: Quantization(dtype="float8_e4m3", y_zero_point=1), "no y_zero_point"),
        (lambda x, w: Quantization(dtype="bfloat16", y_scale=1.0), "y of bfloat16 has no y_scale"),
        (
            lambda x, w: conv(x, w, np.zeros(4, np.int32), quantization=Quantization(dtype="float32")),
            r"bias is float32 of shape \(4,\), got int32",
        ),
        (lambda x, w: conv_backward_data(x, w, x.shape), "dy must be of float32"),
    ],
)
def test_what_it_is_not_is_refused_in_words(change, words):
    with pytest.raises((InvalidArgument, InvalidProblem), match=words):
        change(np.ones((1, 4, 3, 3), E4M3), np.ones((4, 4, 1, 1), E4M3))


def test_only_who_declares_it_is_asked(device):
    problem = ConvProblem.parse(TEXTS[0])
    found = {verdict.solver: verdict for verdict in explain(problem, runtime.device_info(device)).verdicts}
    assert [name for name, verdict in found.items() if not verdict.reason] == [SOLVER]
    assert found["im2col"].reason == "float32, float64, float16, bfloat16 only, got float8_e4m3"
    assert found["int8.words"].reason == "int8, uint8 only, got float8_e4m3"


def test_real_data_are_judged_and_a_wrong_rounding_is_not_right():
    """Rounding toward zero exceeds the limit, so the kit's real data tell the two apart."""
    for text in TEXTS[:2]:
        problem = ConvProblem.parse(text)
        operands = quantized.random_operands(problem, 2)
        expected = reference.compute(problem, **operands)
        cut = np.copysign(np.abs(expected) * (1 - 2.0**-3), expected).astype(numpy_dtype(problem.written_dtype))
        assert reference.relative_error(cut, expected) > error_limit(problem) > 0


def test_a_pinned_solver_that_does_not_declare_it_says_so():
    with policy(solver="im2col"), pytest.raises(Exception, match="only, got float8_e4m3"):
        conv(np.ones((1, 4, 3, 3), E4M3), np.ones((4, 4, 1, 1), E4M3), quantization=Quantization(dtype="float32"))
