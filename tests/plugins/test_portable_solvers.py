"""What the portable solvers refuse, in words; weights that are packed once; the same bits in every run."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import checking
import numpy as np
import pytest
from plans import LARGE, SMALL
from processors import device_of

import convdispatch
from bench.place import options_of
from convdispatch import ConvProblem, NoSolver
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection.plugins.loader import plugins

CPU = device_of("avx512")
# By solver and device, problems and the sentence that refuses each; * stands for any words.
REFUSALS = {
    ("implicitgemm.depthwise", CPU): {
        "mb1ic4ih8oc4kh3": "one channel in and out a group only, got 4 and 4 in 1 groups",
    },
    ("implicitgemm.pointwise", CPU): {
        "mb1ic4ih8oc4kh3": "1x1 only, got 3x3",
        "mb1ic4ih8oc4kh1sh2": "stride 1 and no padding only",
    },
    ("implicitgemm.stem", CPU): {
        "mb1ic9ih32oc4kh5": "8 channels a group at most, got 9",
        "mb1ic3ih17oc4kh3": "rows of 16 places or more, got 15",
        "mb1ic3ih32iw40oc4kh3kw12": "11 taps along w at most, got 12",
    },
    ("implicitgemm.weights", CPU): {
        "mb1ic4ih8oc4kh3": "bwd_weights only, got fwd",
    },
    ("winograd.f4x3", CPU): {
        "mb1ic16ih8oc16kh5": "*3x3, 3x1 or 1x3 only, got 5x5*",
        "mb1ic16ih9oc16kh3sh2": "*stride 1 only, got 2x2*",
        "mb1ic16ih9oc16kh3dh2": "*dilation 1 only, got 2x2*",
        "mb1ic16id9ih9iw9oc16kd3kh3kw3": "*1-D and 2-D only, got 3-D*",
        "mb1ic3ih9oc16kh3": "*channels a group or more, got 3*",
    },
    ("winograd.f6x3", CPU): {
        "mb1ic64ih3oc64kh3": "*multiplications spared 1.2 times or more, got*",
        "mb1ic64ih28oc64kh3ph1+tanh": "*got 3.3e-06, 3.7 times that behind tanh*",
        "ieee_mb1ic64ih14oc64kh3": "*twice a plain sum's error*",
    },
    ("implicitgemm.skinny", CPU): {
        "bwd_data_mb1ic512ih2oc64kh1": "forward only, got bwd_data",
        "mb0ic512ih2oc64kh1": "1 to 64 places of all images, got 0",
        "mb5ic512ih4oc64kh1": "1 to 64 places of all images, got 80",
        "mb1ic512ih13oc64kh13": "128 taps at most, got 169",
        "mb1ic63ih2oc64kh1": "sums of 64 products or more, got 63",
        "g8mb1ic504ih2oc64kh1": "sums of 64 products or more, got 63",
    },
    ("implicitgemm.depthwise_transposed", CPU): {
        "fwd_f32_g2mb1ic2ih9oc2kh3sh2": "*bwd_data only*",
        "bwd_data_f32_nhwc_g2mb1ic2ih9oc2kh3sh2": "*nchw only*",
        "bwd_data_f32_g2mb1ic2ih9oc2kh3": "*a stride only*",
        "bwd_data_f32_g2mb1ic2ih9iw9oc2kh3kw3sh2sw2dh1dw2": "*dilation 1 along w only*",
        "bwd_data_f32_mb1ic2ih9oc5kh3sh2": "*4 output channels a group at most*",
        "bwd_data_f32_g2mb1ic2ih40000iw40000oc2kh8kw8sh4sw4": "*planes of*",
    },
    ("fft.tiled", CPU): {
        "mb1ic4ih8oc4kh3sh2": "stride 1 only, got 2x2",
        "mb1ic4ih8oc4kh1": "more than one tap only, got 1x1",
        "mb1ic4ih80oc4kh70": "kernels that a transform of 64 points holds only, got 1x70x70",
        "mb0ic4ih8oc4kh3": "1 image or more, got 0",
        "g4mb1ic4ih8oc4kh3": "more than one channel in or out a group only, got 1 and 1",
    },
    ("fft.gpu", SMALL): {
        "mb1ic4ih8oc4kh3sh2": "*stride 1 only, got 2x2*",
        "mb1ic4ih8oc4kh1": "*more than one tap*",
        "mb1ic4id8oc4kd3": "*1-D and 2-D only*",
        "mb0ic4ih8oc4kh3": "*1 image or more, got 0*",
        "mb1ic4ih80oc4kh70": "*64 points*",
    },
    ("implicitgemm.tiled_depthwise", SMALL): {
        "fwd_f16_nhwc_g8mb1ic16ih6oc16kh3": "*one channel*",
        "fwd_f16_nhwc_g8mb1ic8ih6oc16kh3": "*one channel*",
        "fwd_f16_nhwc_g8mb0ic8ih6oc8kh3": "*1 image*",
        "bwd_weights_f16_nhwc_g8mb1ic8ih6oc8kh3": "*weights' gradient*",
        "fwd_f32_g8mb1ic8ih60oc8kh51": "*multiply-adds*",
    },
    ("implicitgemm.tiled_narrow", SMALL): {
        "mb1ic4ih8oc8kh3": "*4 output channels*",
        "bwd_weights_mb1ic4ih8oc4kh3": "*forward*",
    },
    ("implicitgemm.tiled", LARGE): {
        "mb65536ic1ih128iw256oc1kh1": "*columns*",
    },
    ("implicitgemm.tiled", CPU): {
        "mb1ic4ih8oc4kh3": "*CPU*",
    },
    ("implicitgemm.tiled_narrow", CPU): {
        "mb1ic4ih8oc4kh3": "*CPU*",
    },
    ("implicitgemm.tiled_depthwise", CPU): {
        "g4mb1ic4ih8oc4kh3": "*CPU*",
    },
    ("implicitgemm.tiled_depthwise_sums", CPU): {
        "bwd_weights_g4mb1ic4ih8oc4kh3": "*CPU*",
    },
    ("fft.gpu", CPU): {
        "mb1ic4ih8oc4kh3": "*CPU*",
    },
}


@pytest.mark.parametrize(("solver", "info"), REFUSALS, ids=[solver for solver, _ in REFUSALS])
def test_refusals_are_sentences(solver, info):
    for text, reason in REFUSALS[solver, info].items():
        found = plugins().solvers[solver].rejects(ConvProblem.parse(text), info)
        assert fnmatchcase(found, reason), (text, found)


def test_as_many_columns_as_an_int_counts():
    tiled = plugins().solvers["implicitgemm.tiled"]
    assert tiled.rejects(ConvProblem.parse("mb32768ic1ih128iw256oc1kh1"), LARGE) is None


@pytest.mark.parametrize("solver", ["implicitgemm.pointwise", "winograd.f4x3"])
def test_a_refusal_reaches_the_caller(cpu, device, solver):
    problem = ConvProblem.parse("mb1ic16ih8oc16kh5")
    reason = plugins().solvers[solver].rejects(problem, cpu)
    operands, _ = checking.make_operands(problem)
    with convdispatch.policy(solver=solver), pytest.raises(NoSolver, match=re.escape(reason)):
        checking.call(problem, operands.present(), queue=runtime.queue(device))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("number", "solver", "text"), [
    (0, "implicitgemm.*", "mb2ic6ih9oc35kh3ph1"), (1, "implicitgemm.*", "g19mb2ic19ih9oc19kh3ph1"),
    (2, "implicitgemm.*", "mb2ic18ih6oc21kh1"), (3, "winograd.f4x3", "mb2ic18ih9oc35kh3ph1"),
])  # fmt: skip
def test_constant_weights_are_packed_once(cpu, device, thinned, number, solver, text, layout):
    """The packed form serves every later call, also under another batch size."""
    thinned((number + (layout == "nhwc")) % 2 and number < 3)
    random, problem = np.random.default_rng(0), ConvProblem.parse(text).replace(layout=layout)
    w = random.integers(-4, 5, problem.w_shape).astype(np.float32)
    held = convdispatch.constant(w)
    with convdispatch.policy(solver=solver, fallback=False):
        for mb in (2, 2, 3):
            p = problem.replace(mb=mb)
            x = random.integers(-4, 5, p.x_shape).astype(np.float32)
            got = convdispatch.conv(x, held, **options_of(p), queue=runtime.queue(device))
            expected = reference.compute(p, x=x, w=w)
            assert reference.relative_error(got, expected) <= (1e-5 if solver.startswith("winograd") else 0)


@pytest.mark.parametrize(("solver", "text"), [
    ("implicitgemm.*", "bwd_weights_mb3ic20ih12oc40kh3ph1"), ("winograd.f4x3", "bwd_weights_mb2ic24ih14oc40kh3ph1"),
])  # fmt: skip
def test_same_bits_every_time(cpu, device, solver, text):
    operands, _ = checking.make_operands(problem := ConvProblem.parse(text), "real")
    with convdispatch.policy(solver=solver, fallback=False):
        first, second = (checking.call(problem, operands.present(), queue=runtime.queue(device)) for _ in range(2))
    assert np.array_equal(first, second)
