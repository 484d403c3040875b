"""``convdispatch run``, and ``find`` and ``bench`` of a model file: what is printed, written, measured and locked."""

import json

import numpy as np
import pytest
from command_line import run_cli

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx_models import expected, model, node, normal, residual, saved  # noqa: E402

from convdispatch.api.problem import ConvProblem  # noqa: E402
from convdispatch.onnx import load  # noqa: E402
from convdispatch.selection import dispatch  # noqa: E402
from convdispatch.selection.choice import lockfile  # noqa: E402


@pytest.fixture
def path(tmp_path):
    return saved(residual(), tmp_path / "net.onnx")


def test_run_says_what_went_in_and_came_out(path, tmp_path):
    x = normal(2, 3, 8, 8)
    np.save(tmp_path / "x.npy", x)
    done = run_cli(
        "run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "out.npz", "--runs", 2, status=0
    )
    assert "[2, 3, 8, 8]" in done.output
    assert "ms a run (median of 2" in done.output
    with np.load(tmp_path / "out.npz") as results:
        np.testing.assert_allclose(results["y"], expected(residual(), x)[0], rtol=1e-5, atol=1e-5)


def test_run_takes_archives_and_batches(path, tmp_path):
    np.savez(tmp_path / "in.npz", x=normal(1, 3, 8, 8))
    done = run_cli("run", path, "--input", tmp_path / "in.npz", "--batch", 3, "--runs", 1)
    assert "[3, 3, 8, 8]" in done.output
    assert "x (random)" in run_cli("run", path, "--runs", 1).output


def test_the_profile_is_the_benchmarks_page(path, tmp_path):
    np.save(tmp_path / "x.npy", normal(1, 3, 6, 6))
    page = tmp_path / "page.html"
    done = run_cli("run", path, "--input", tmp_path / "x.npy", "--runs", 1, "--profile", "--html", page, status=0)
    assert "roof" in done.output
    assert "conv" in done.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_trace_is_one_run_as_the_devices_clock_saw_it(path, tmp_path):
    """With gaps, and in order; medians laid end to end had none."""
    run_cli("run", path, "--trace", tmp_path / "t.json", "--runs", 2, status=0)
    values = json.loads((tmp_path / "t.json").read_text())
    spans = [event for event in values["traceEvents"] if event["ph"] == "X"]
    assert len(spans) >= 3
    assert values["otherData"]["times"].startswith("the device's clock, one warm run")
    starts, ends = [each["ts"] for each in spans], [each["ts"] + each["dur"] for each in spans]
    assert starts == sorted(starts)
    assert starts[0] == 0.0
    assert all(end <= start + 1e-3 for end, start in zip(ends, starts[1:]))
    assert any(start > end for end, start in zip(ends, starts[1:])), "there is a gap somewhere"
    assert any("problem" in each["args"] for each in spans)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--input", "z=x.npy"], "cannot be read as an array"),
        (["--input", "x=none.npy"], "cannot be read"),
    ],
)
def test_run_says_what_is_wrong(path, words, said):
    done = run_cli("run", path, *words, status=1)
    assert said in done.output
    assert done.output.count("\n") == 1


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
