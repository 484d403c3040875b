"""``implicitgemm.skinny``: few places and long sums, exact between guard zones, whatever lies beside a row."""

from __future__ import annotations

import checking
import numpy as np
import pytest
from plans import check_config
from processors import described, device_of

import convdispatch
from bench.place import options_of
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.plugins.loader import plugins

SKINNY = "implicitgemm.skinny"

# Sums of whole vectors and of a rest; rows, places and sums of a tile left over; windows that lie in one piece and are
# copied; groups; padding on every side, strides, dilation; three axes; every epilogue and type.
TABLE = (
    "mb1ic96ih4oc37kh3sh2ph1",
    "mb1ic131ih1oc67kh1+bias",
    "mb1ic64ih1oc1kh1",
    "mb1ic65ih1oc2kh1+accumulate",
    "mb5ic79ih1oc9kh1+residual+bias+relu",
    "g2mb3ic140ih4oc26kh3sh2ph1+residual+bias+relu6",
    "mb2ic17ih7oc13kh7",
    "g3mb2ic66ih2iw3oc15kh2kw3",
    "mb1ic100ih8oc17kh1+accumulate",
    "mb1ic23ih2iw9oc11kh3kw5ph1ph_r2pw4pw_r0sw3dw2",
    "mb1ic100id3ih3iw2oc17kd2kh2kw2+constant",
    "mb2ic80iw7oc9kw3pw1",
    "nhwc_mb1ic96ih4oc37kh3sh2ph1+bias",
    "nhwc_mb2ic130ih3oc33kh1+bias+relu",
    "nhwc_g2mb2ic134ih3oc34kh1+residual",
    "nhwc_g3mb2ic99ih5oc30kh3sh2ph1dh2",
    "nhwc_mb3ic17ih7oc13kh7+constant",
    "nhwc_g2mb3ic34ih3oc18kh3+accumulate",
    "nhwc_mb1ic30id3ih2iw2oc17kd2kh2kw1pd1sd2",
    "f64_mb1ic131ih2oc9kh3ph1+bias",
    "f64_nhwc_mb1ic71ih2oc19kh1",
    "f16_mb1ic133ih2oc9kh3ph1",
    "f16_nhwc_mb2ic133ih2oc20kh1+bias",
    "bf16_nhwc_g2mb1ic270ih2oc18kh3ph1+relu",
    "bf16_mb3ic90ih1oc21kh1",
)


@pytest.fixture
def info(device):
    found = runtime.device_info(device)
    if found.type != "cpu":
        pytest.skip("the kernel is for CPUs")
    return found


@pytest.mark.parametrize(("number", "text"), list(enumerate(TABLE)), ids=TABLE)
def test_few_places_are_exact(device, info, thinned, number, text):
    thinned(number % 2)
    problem = ConvProblem.parse(text)
    if lacking := info.supports(problem.dtype):
        pytest.skip(lacking)
    checking.check(problem, device, solver=SKINNY, offset=number // 2 % 2)


@pytest.mark.parametrize("text", ["mb2ic150ih4oc33kh3sh2ph1", "nhwc_mb3ic700ih2oc20kh1"])
def test_real_numbers(device, info, text):
    checking.check(ConvProblem.parse(text), device, solver=SKINNY, data="real")


def test_every_tile_gives_the_same_integers(device, info):
    """Tiles of one sum, of more sums than a vector has lanes, of rows and places that leave some over or not."""
    problem = ConvProblem.parse("mb2ic20ih4oc13kh3sh2ph1+bias")
    solver = plugins().solvers[SKINNY]
    base = next(iter(solver.configs(problem, info)))
    for mr, pc, items in ((1, 1, 1), (8, 3, 64), (13, 1, 3)):
        check_config(runtime.queue(device), problem, solver, {**base, "mr": mr, "pc": pc, "items": items})


@pytest.mark.parametrize("text", ["mb4ic67ih1oc5kh1", "nhwc_mb1ic67ih2oc5kh1", "mb1ic9ih4oc5kh3sh2ph1"])
def test_what_is_not_finite_stays_in_its_row_and_its_place(device, info, text):
    """A last vector begins before the row's rest, beside the next row and the next place."""
    problem = ConvProblem.parse(text)
    random = np.random.default_rng(3)
    x, w = (random.integers(1, 5, shape).astype(np.float32) for shape in (problem.x_shape, problem.w_shape))
    w[1], w[3].reshape(-1)[0] = np.nan, np.inf
    got = run(problem, x, w, device)
    channels = got if problem.layout == "nchw" else np.moveaxis(got, -1, 1)
    sound = np.where(np.isfinite(w), w, 0)
    expected = reference.compute(problem, x=x, w=sound)
    expected = expected if problem.layout == "nchw" else np.moveaxis(expected, -1, 1)
    np.testing.assert_array_equal(channels[:, [0, 2, 4]], expected[:, [0, 2, 4]])
    assert np.isnan(channels[:, 1]).all()
    assert np.isposinf(channels[:, 3]).any()
    assert not np.isnan(channels[:, 3]).any() or problem.ph
    x.reshape(-1)[-1] = np.inf  # of the last image or pixel alone
    last = run(problem, x, sound, device)
    clean = reference.compute(problem, x=np.where(np.isfinite(x), x, 0), w=sound)
    touched = reference.compute(problem, x=(~np.isfinite(x)).astype(np.float32), w=np.ones_like(w)) > 0
    np.testing.assert_array_equal(last[~touched], clean[~touched])
    assert not np.isfinite(last[touched]).any()


def run(problem, x, w, device):
    """y, NumPy's."""
    with convdispatch.policy(solver=SKINNY, fallback=False):
        return convdispatch.conv(x, w, **options_of(problem), queue=runtime.queue(device))


@pytest.mark.parametrize("units", [2, 16])
@pytest.mark.parametrize("name", ["avx2", "avx512"])
@pytest.mark.parametrize(
    "text",
    ["mb1ic1024ih4oc1024kh3sh2ph1", "mb1ic960ih1oc1280kh1", "nhwc_mb1ic2048ih2oc512kh1", "mb4ic512ih7oc1000kh7"],
)
def test_it_is_chosen_for_weights_that_few_places_read(text, name, units, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    with described(name):
        assert rank(ConvProblem.parse(text), device_of(name, units))[0].solver.name == SKINNY


@pytest.mark.parametrize("text", ["mb1ic64ih8oc64kh3ph1", "mb1ic64ih8oc64kh1", "mb8ic512ih7oc512kh3ph1"])
def test_it_is_not_where_places_are_many(text, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    with described("avx512") as cpu:
        assert rank(ConvProblem.parse(text), cpu)[0].solver.name != SKINNY


def test_windows_in_one_piece_take_no_memory():
    solver, cpu = plugins().solvers[SKINNY], device_of("avx512")
    sizes = []
    for text in ("mb2ic100ih1oc8kh1", "mb2ic20ih3oc8kh3", "nhwc_mb1ic100ih4oc8kh1", "mb1ic100ih2oc8kh1"):
        problem = ConvProblem.parse(text)
        sizes.append(solver.workspace(problem, cpu, next(iter(solver.configs(problem, cpu)))))
    assert sizes == [0, 0, 0, 4 * 112 * 4]  # four places, an odd number of cache lines each
