"""The choice of implicitgemm's tiles: rated at once as one by one; none that spills, none of lone 16-bit numbers."""

from __future__ import annotations

import itertools

import pytest
from convdispatch_implicitgemm.gpu import choice
from convdispatch_implicitgemm.gpu.product import Product
from plans import LARGE, SMALL
from processors import device_of

from convdispatch import ConvProblem
from convdispatch.api.cpu import registers
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.selection.plugins.loader import plugins


@pytest.mark.parametrize("info", [SMALL, LARGE], ids=["small", "large"])
def test_tiles_rated_at_once_are_those_rated_one_by_one(info):
    """Near misses of all that decides which tiles fit, which then problems share; and numbers beyond 64 bits."""
    sizes = itertools.product((3, 8, 96, 97, 98), (4, 6), (5, 6), (1, 3))
    small = [ConvProblem(mb=2, ic=c, oc=m, ih=i, iw=i, kh=k, kw=k) for c, m, i, k in sizes]
    huge = ConvProblem(mb=1 << 31, ic=1 << 10, ih=1 << 14, iw=1 << 14, oc=512, kh=3, kw=3)
    for number, (direction, layout) in enumerate(itertools.product(DIRECTIONS, LAYOUTS)):
        for problem in (huge, *small[number % 4 :: 4]):
            problem = problem.replace(direction=direction, layout=layout)
            fitting = list(choice._fitting(problem, info))
            assert list(choice._tiles(choice._TileKey.of(problem), info)) == fitting
            offered = [Product(problem, tile) for tile in choice.choices(problem, info)]
            times = [choice.seconds(product, info) for product in offered[: choice.MAX_CONFIGS]]
            assert times == sorted(times)
            plain = [Product(problem, tile) for tile in fitting]
            assert times[0] <= min(choice.seconds(product, info) for product in plain)
            size, least = (min(p.packed_size + p.partial_size for p in each) for each in (offered, plain))
            assert size == least


@pytest.mark.parametrize("name", ["avx2", "avx512"])
@pytest.mark.parametrize("text", [
    "fwd_f32_mb1ic3ih64iw64oc3kh3kw3ph1pw1", "fwd_f32_mb1ic3ih64iw64oc6kh5kw5ph2pw2",
    "fwd_f32_mb1ic1ih40iw128oc9kh3kw3ph1pw1"])  # fmt: skip
def test_a_tiles_sums_vectors_and_weight_fit_the_registers(text, name):
    device = device_of(name)
    configs = list(plugins().solvers["implicitgemm.stem"].configs(ConvProblem.parse(text), device))
    assert configs
    assert [c for c in configs if c["mr"] * c["nv"] + c["nv"] + 1 > registers(device)] == []


@pytest.mark.parametrize("text", [
    "bwd_weights_f16_nhwc_g448mb32ic448ih23iw23oc448kh5kw5ph2pw2", "bwd_weights_f16_nhwc_g80mb64ic80ih35iw35oc80kh7kw7",
    "bwd_data_f16_nhwc_g544mb1ic544ih43iw43oc544kh3kw3"])  # fmt: skip
def test_depthwise_tiles_of_narrow_floats_read_channels_in_vectors(text):
    """A 16-bit number that is read alone takes many instructions: such tiles took 1.4 to 2.3 times the best time."""
    name = "tiled_depthwise_sums" if text.startswith("bwd_weights") else "tiled_depthwise"
    solver, problem = plugins().solvers[f"implicitgemm.{name}"], ConvProblem.parse(text)
    best = {dtype: next(iter(solver.configs(problem.replace(dtype=dtype), LARGE))) for dtype in ("float16", "float32")}
    assert best["float16"]["vector"] > 1
    assert best["float32"]["vector"] == 1
