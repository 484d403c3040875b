"""The training profile: every kind of operation is there in both directions, and the numbers hang together."""

import json

import pytest
from command_line import run_cli

from convdispatch.api import InvalidArgument
from convdispatch.tools.benchmark.training import profile_training


@pytest.fixture(scope="module")
def report():
    return profile_training("lenet", 4, steps=2)


def test_every_kind_is_there(report):
    kinds = {kind.name: kind for kind in report.kinds}
    assert kinds.keys() >= {"convolution", "linear", "max_pool", "cross_entropy", "optimiser"}
    assert "activate" not in kinds, "ReLU belongs to the convolution before it"
    assert [kinds[name].calls for name in ("convolution", "linear", "max_pool", "optimiser")] == [2, 3, 2, 1]
    for name in ("convolution", "linear", "max_pool", "cross_entropy"):
        assert kinds[name].forward_ms > 0
        assert kinds[name].backward_ms > 0
    assert kinds["optimiser"].backward_ms > 0
    assert [kind.ms for kind in report.kinds] == sorted((kind.ms for kind in report.kinds), reverse=True)


def test_numbers_hang_together(report):
    assert report.images_per_second == pytest.approx(4e3 / report.step_ms)
    assert 0 < report.share_beside_convolution < 1
    assert report.peak_bytes > 4 * 28 * 28 * 4
    assert report.loss[1] < report.loss[0]


def test_command_writes_json(tmp_path):
    path = tmp_path / "train.json"
    arguments = ["bench", "--net", "lenet", "--train", "--batch", "2", "--layout", "nhwc", "--json", str(path)]
    done = run_cli(*arguments, status=0)
    assert "images/s" in done.output
    (found,) = json.loads(path.read_text())
    assert (found["net"], found["mb"], found["layout"]) == ("lenet", 2, "nhwc")


def test_bad_requests():
    with pytest.raises(InvalidArgument, match="at least 1 picture, got 0"):
        profile_training("lenet", 0)
    with pytest.raises(InvalidArgument, match="no net 'lemnet'"):
        profile_training("lemnet")
