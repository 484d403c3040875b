"""``find`` and ``bench`` of a model file: what is measured and locked."""

import json

import pytest
from command_line import run_cli

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx_models import model, node, normal, saved  # noqa: E402

from convdispatch.api.problem import ConvProblem  # noqa: E402
from convdispatch.onnx import load  # noqa: E402
from convdispatch.selection import dispatch  # noqa: E402
from convdispatch.selection.choice import lockfile  # noqa: E402


def test_find_measures_and_locks_what_the_net_asks_for(tmp_path, monkeypatch):
    """Under the lock the net is built of the locked decisions."""
    proto = model(
        [node("Conv", "x w", "c"), node("Relu", "c", "y")], {"x": [1, 3, 6, 6]}, ["y"], {"w": normal(4, 3, 3, 3)}
    )
    path, lock = saved(proto, tmp_path / "one.onnx"), tmp_path / "net.lock"
    run_cli("find", path, "--budget", 50, "--lock", lock, "--json", status=0)
    found = {ConvProblem.parse(text) for text in json.loads(lock.read_text())["problems"]}
    net = load(path)
    assert found == set(net.problems((1, 3, 6, 6)))
    assert {problem.layout for problem in found} == {"nchw", "nhwc"}
    assert {problem.activation for problem in found} == {"relu"}
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(lock))
    dispatch.forget()
    try:
        built = net.build((1, 3, 6, 6))
        (layer,) = (layer for layer in built.layers if layer.problem)
        assert layer.solver == lockfile.read(lock)[str(layer.problem)].solver
        assert "net.lock" in layer.source
    finally:
        monkeypatch.undo()
        dispatch.forget()
    assert run_cli("find", path, "--lock", lock, "--check").exit_code in (0, 1)


def test_bench_takes_a_model(tmp_path):
    proto = model([node("Conv", "x w", "y")], {"x": ["n", 3, 6, 6]}, ["y"], {"w": normal(4, 3, 3, 3)})
    path, written = saved(proto, tmp_path / "one.onnx"), tmp_path / "bench.json"
    run_cli("bench", path, "--no-find", "--no-isolate", "--batch", 2, "--json", written, status=0)
    layers = json.loads(written.read_text())["layers"]
    assert [layer["net"] for layer in layers] == ["one"]
    assert ConvProblem.parse(layers[0]["problem"]).mb == 2
