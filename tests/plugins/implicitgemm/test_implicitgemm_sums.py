"""Norms and sums that ``implicitgemm.tiled`` fuses: by the kit's checks, in every way of reading and of storing."""

from __future__ import annotations

import convdispatch_implicitgemm
import pytest
from convdispatch_implicitgemm.gpu.product import Product, Tile
from plans import SMALL, declared

from convdispatch import ConvProblem
from convdispatch.measurement.conformance.checks import Examination

pytestmark = pytest.mark.usefixtures("item_by_item")
TILED = declared(convdispatch_implicitgemm, SMALL)["implicitgemm.tiled"]
TILED.exact = True


def examine(queue, problem: ConvProblem, config) -> None:
    stated = TILED.workspace(problem, SMALL, config)
    Examination(TILED, problem, config, stated, queue).run(False)


PROBLEMS = [
    "mb3ic20ih8oc70kh3ph1+norm(relu)+bias+residual+relu+sums",
    "nhwc_mb3ic20ih7oc72kh3ph1sh2+norm(relu)+sums",
    "f16_mb2ic3ih15oc20kh5sh2ph2+norm(relu)+sums",
    "bwd_data_mb2ic20ih9oc18kh3sh2ph1+residual+norm(leaky_relu(0.5))+sums",
    "bwd_data_nhwc_g3mb2ic9ih7oc6kh3ph1+residual+norm(relu)+sums",
    "bwd_weights_mb2ic20ih8oc34kh3ph1+norm(relu)",
]
FURTHER_PROBLEMS = [
    "mb3ic20ih7oc70kh3ph1+bias+sums",
    "nhwc_mb3ic19ih7oc70kh1+norm(leaky_relu(0.5))+sums",
    "mb2ic16ih8oc20kh1+norm(relu)+sums",
    "bf16_nhwc_g2mb2ic8ih6oc12kh3ph1+norm(relu)+bias+sums",
    "f64_mb1ic4id4oc6kd3pd1+sums",
    "bwd_data_mb3ic20ih7oc18kh3ph1+norm(relu)+sums",
    "bwd_data_nhwc_mb2ic20ih8oc16kh1+norm(relu)",
    "bwd_data_f16_mb2ic8ih8oc12kh1+norm(identity)+sums",
    "bwd_weights_nhwc_mb2ic20ih8oc36kh3ph1+norm(relu)+accumulate",
    "bwd_weights_g2mb2ic6ih8oc8kh1+norm(relu)",
    "bwd_weights_f16_nhwc_mb2ic6ih7oc8kh3sh2+norm(identity)",
]


def first_of_each_kind(problem: ConvProblem) -> list[dict]:
    """A configuration of each walk, with a whole sum and with a split one."""
    kinds = {}
    for config in TILED.configs(problem, SMALL):
        tile = Tile.of(config)
        kinds.setdefault((tile.walk, tile.split > 1), dict(config))
    return list(kinds.values())


@pytest.mark.parametrize("text", PROBLEMS)
def test_norms_and_sums(queue, text):
    problem = ConvProblem.parse(text)
    examine(queue, problem, first_of_each_kind(problem)[0])


def test_every_way_of_reading(queue, full):
    for problem in map(ConvProblem.parse, [*PROBLEMS, *FURTHER_PROBLEMS] if full else []):
        for config in first_of_each_kind(problem):
            examine(queue, problem, config)


def test_sums_leave_with_the_tiles_or_after_the_parts(queue):
    """A split sum is not known to a work group, so its channels are summed by launches that read the result."""
    problem = ConvProblem.parse("mb3ic40ih7oc20kh3ph1+sums")
    for split in (1, 2):
        config = {"bm": 16, "bn": 32, "bk": 16, "tm": 4, "tn": 4, "split": split}
        product = Product(problem, Tile.of(config))
        assert product.sums == (split == 1)
        assert product.sums_parts == product.n_tiles == 5
        examine(queue, problem, config)
