"""implicitgemm.depthwise_transposed: transposed depthwise layers of any kernel and stride, and when it runs."""

from __future__ import annotations

import numpy as np
import pytest
from checking import check
from processors import described

import convdispatch as cd
from convdispatch import ConvProblem
from convdispatch.selection.choice import ranking

NAME = "implicitgemm.depthwise_transposed"
SHAPES = {
    "k16 s8": "g3mb2ic3ih40iw48oc3kh16kw16sh8sw8ph4pw4",
    "k4 s2": "g5mb1ic5ih18iw34oc5kh4kw4sh2sw2ph1pw1",
    "no padding": "g2mb1ic2ih24iw24oc2kh8kw8sh8sw8",
    "kernels that end within a stride": "g3mb1ic3ih33iw41oc3kh9kw9sh4sw4ph2pw2",
    "one tap more than a stride": "g2mb1ic2ih20iw161oc2kh3kw9sh2sw8",
    "strides longer than kernels": "g2mb1ic2ih29iw57oc2kh3kw5sh9sw17",
    "long rows": "g2mb1ic2iw700oc2kw32sw4pw14",
    "long strides": "g1mb1ic1ih40iw161oc1kh64kw64sh32sw32ph16pw16",
    "strides of three": "g4mb1ic4ih40iw88oc4kh32kw32sh3sw3ph14pw14",
    "rows shorter than a vector": "g3mb2ic3ih9iw7oc3kh5kw5sh2sw3ph2pw2",
    "a stride along h alone": "g2mb1ic2ih21iw37oc2kh7kw5sh3sw1ph3pw2",
    "dilated rows": "g3mb1ic3ih45iw40oc3kh5kw8sh4sw4dh3dw1ph2pw2",
    "two channels in and out": "g3mb2ic6ih24iw25oc6kh6kw6sh4sw4ph1pw1",
    "channels that differ": "g2mb1ic2ih17iw22oc8kh5kw6sh3sw4ph1pw1",
    "one group": "mb2ic1ih30iw33oc1kh16kw16sh8sw8ph4pw4",
    "three axes": "g3mb1ic3id9ih11iw14oc3kd5kh5kw5sd2sh3sw4pd1ph2pw1",
    "asymmetric padding": "g2mb1ic2ih19iw30oc2kh6kw7sh3sw5ph4pw6ph_r1pw_r0",
    "padding beyond the kernel": "g2mb1ic2ih8iw8oc2kh3kw3sh2sw2ph5pw6",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(device, shape):
    problem = ConvProblem.parse("bwd_data_f32_" + SHAPES[shape])
    check(problem, device, solver=NAME)
    check(problem, device, solver=NAME, data="normal")


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize(
    "shape", ["kernels that end within a stride", "two channels in and out", "rows shorter than a vector"]
)
def test_dtypes(device, dtype, shape):
    check(ConvProblem.parse(f"bwd_data_{dtype}_{SHAPES[shape]}"), device, solver=NAME)


@pytest.mark.parametrize("flags", ["+bias", "+residual", "+accumulate", "+bias+residual+relu", "+gelu"])
@pytest.mark.parametrize("shape", ["k16 s8", "kernels that end within a stride"])
def test_epilogues(device, flags, shape):
    check(ConvProblem.parse("bwd_data_f32_" + SHAPES[shape] + flags), device, solver=NAME)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("shape", ["kernels that end within a stride", "k16 s8", "padding beyond the kernel"])
def test_what_is_not_finite_stays_where_it_is_read(shape, value):
    """A pixel of y reaches the places that its taps write; a weight those that it is read for, and no padding."""
    problem = ConvProblem.parse("bwd_data_f32_" + SHAPES[shape])
    options = {"stride": problem.sh, "padding": (problem.ph, problem.pw), "groups": problem.g}
    for where in ("pixel", "weight"):
        dy, w = np.ones(problem.y_shape, np.float32), np.ones(problem.w_shape, np.float32)
        touched = [np.zeros(problem.y_shape, np.float32), np.zeros(problem.w_shape, np.float32)]
        if where == "pixel":
            dy[0, 0, -1, -1] = value
            touched[0][0, 0, -1, -1], touched[1] = 1, np.ones_like(w)
        else:
            w[0, 0, -1, 0] = value
            touched[0], touched[1][0, 0, -1, 0] = np.ones_like(dy), 1
        with cd.policy(solver=NAME, fallback=False):
            got = cd.conv_backward_data(dy, w, problem.x_shape, **options)
            reached = cd.conv_backward_data(*touched, problem.x_shape, **options)
        np.testing.assert_array_equal(np.isfinite(got), reached == 0)


@pytest.mark.parametrize(
    "c_h_k_s", [(21, 60, 16, 8), (21, 30, 32, 16), (21, 16, 64, 32), (64, 40, 16, 8), (1, 60, 16, 8)]
)
def test_upsampling_by_large_kernels_runs_it(c_h_k_s):
    """As FCN and PyramidBox have them: im2col took 4 to 13 times PyTorch's time."""
    c, h, k, s = c_h_k_s
    size = (h - 1) * s + k - s
    text = f"bwd_data_f32_g{c}mb1ic{c}ih{size}iw{size}oc{c}kh{k}kw{k}sh{s}sw{s}ph{s // 2}pw{s // 2}"
    with described("avx512") as device:
        assert ranking.rank(ConvProblem.parse(text), device)[0].solver.name == NAME
