"""The choice of implicitgemm's tiles on GPUs: many rated at once are rated as one by one."""

from __future__ import annotations

import itertools

import pytest
from convdispatch_implicitgemm.gpu import choice
from convdispatch_implicitgemm.gpu.product import Product
from plans import LARGE, SMALL

from convdispatch import ConvProblem
from convdispatch.api.problem import DIRECTIONS, LAYOUTS


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
