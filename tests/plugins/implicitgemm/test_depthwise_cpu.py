"""Depthwise layers on CPUs: exact on small integers, between guard zones, and blind to what lies beside a plane."""

from __future__ import annotations

import checking
import numpy as np
import pytest
from convdispatch_implicitgemm.cpu.places import MISFIT

import convdispatch
from convdispatch import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("cpu")
LAYOUTS = ("nchw", "nhwc")


# Channels and columns at and beside the ends of vectors and tiles, taps that leave the source on every side.
ROWS = (
    "g4mb2ic4ih9iw8oc4kh3ph1+bias",
    "g5mb1ic5ih7iw9oc5kh3ph1+bias+residual+relu",
    "g9mb1ic9ih6iw17oc9kh5ph2+accumulate",
    "g15mb1ic15ih5iw7oc15kh5ph2+bias+relu6",
    "g16mb1ic16ih11iw16oc16kh3ph1sh2+residual",
    "g17mb2ic17ih9iw10oc17kh3ph1sh2+bias+residual",
    "g24mb1ic24ih17iw15oc24kh3ph1+residual+accumulate",
    "g33mb1ic33ih10iw25oc33kh7ph3+bias",
    "g40mb1ic40ih4iw5oc40kh5kw9ph4pw6",
    "g20mb1ic20ih13iw12oc20kh3kw2ph0ph_r2pw3pw_r0sh3sw2dh2dw3",
    "g18mb1ic18ih6iw7oc18kh2sh3",
    "g19mb1ic19id4ih5iw9oc19kd3kh3kw3pd1ph1pw1sd2sh1sw2",
    "g21mb1ic21iw37oc21kw4sw2pw1",
    "g100mb1ic100ih30iw9oc100kh5ph2",
    "g3mb2ic3ih7oc3kh5ph2",
    "g6mb1ic6ih7oc6kh5ph2+accumulate",
    "g3mb1ic3ih14oc3kh5ph2sh2+bias+residual",
    "g5mb2ic5ih45iw50oc5kh3ph1+bias+relu",
    "g2mb1ic2ih30iw67oc2kh5ph2sh2+accumulate",
    "g2mb1ic2ih23iw32oc2kh3ph2dh2+residual",
    "g3mb1ic3ih40iw4oc3kh2sh1ph1",
    "g2mb1ic2ih50iw7oc2kh3ph0+constant",
    "f16_g21mb1ic21ih9iw17oc21kh3ph1+residual",
    "bf16_g24mb1ic24ih9iw11oc24kh3ph1sh2+bias",
    "f64_g11mb1ic11ih9iw10oc11kh3ph1",
)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", ROWS)
def test_rows_of_any_width_and_vectors_of_any_rest_are_exact(device, thinned, text, layout, direction):
    """Every row in every direction, in the layout of its turn."""
    problem = ConvProblem.parse(text).replace(layout=layout)
    if layout == "nhwc" and problem.g < 4:
        pytest.skip("channels fill no vector")
    thinned(problem.g >= 4 and layout != LAYOUTS[(ROWS.index(text) + len(direction)) % 2])
    lacking = runtime.device_info(device).supports(problem.dtype)
    if lacking:
        pytest.skip(lacking)
    if direction != "fwd":
        problem = problem.replace(
            direction=direction, bias=False, residual=False, activation=None, constant_weights=False
        )
    solver = "implicitgemm.depthwise" + "_weights" * (direction == "bwd_weights")
    if plugins().solvers[solver].rejects(problem, runtime.device_info(device)) == MISFIT:
        solver = "im2col"
    checking.check(problem, device, solver=solver)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(8, 12), (7, 7), (9, 21)], ids=str)
def test_a_tile_takes_nothing_from_outside_its_rows(device, size, layout):
    """Neighbouring rows, images and channels are infinite: where a tap leaves the source there is a zero."""
    x = np.full((3, *size, 24), np.inf, np.float32)
    x[1] = 1
    w = np.ones((24, 5, 5, 1), np.float32)
    if layout == "nchw":
        x, w = (np.ascontiguousarray(each.transpose(0, 3, 1, 2)) for each in (x, w))
        x[1, ::2] = np.inf
    with convdispatch.policy(solver="implicitgemm.depthwise", fallback=False):
        y = convdispatch.conv(x, w, padding=2, groups=24, layout=layout, queue=runtime.queue(device))
    y = y[1] if layout == "nhwc" else y[1, 1::2].transpose(1, 2, 0)
    assert np.array_equal(y, np.broadcast_to(np.outer(*(5 - np.maximum(0, np.maximum(2 - i, i - n + 3))
                          for n in size for i in [np.arange(n)]))[..., None], y.shape))  # fmt: skip


@pytest.mark.parametrize("size", [(8, 12), (7, 7), (9, 21)], ids=str)
def test_a_gradient_sums_its_own_plane_alone(device, size):
    """Infinite neighbours of x's planes meet finite ones of dy, and the other way round."""
    x, dy = (np.full((3, 6, *size), np.inf, np.float32) for _ in range(2))
    x[:, 1::2] = dy[:, 1::2] = 1
    with convdispatch.policy(solver="implicitgemm.depthwise_weights", fallback=False):
        dw = convdispatch.conv_backward_weights(
            x, dy, (6, 1, 5, 5), padding=2, groups=6, queue=runtime.queue(device)
        )  # fmt: skip
    counts = [[n - abs(tap - 2) for tap in range(5)] for n in size]
    assert np.array_equal(dw[1::2, 0], np.broadcast_to(3.0 * np.outer(*counts), (3, 5, 5)))
