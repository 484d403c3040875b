"""One resolver: each command that takes a net, a model, a lock file or a problem takes all of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run_cli

from convdispatch.tools.problems import known_nets, read_entries

PROBLEM = "mb1ic4ih6oc4kh3ph1"


def invoke(*words):
    done = run_cli(*words, status=0)
    return done.output


@pytest.fixture
def model(tmp_path):
    onnx = pytest.importorskip("onnx", reason="a model file is ONNX's, which is not installed")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    value = helper.make_tensor_value_info
    x, y = value("x", 1, [1, 4, 6, 6]), value("y", 1, [1, 4, 6, 6])
    w = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_tables_and_nets_of_models_are_known_alike():
    assert {"resnet50", "cpu10", "lenet", "vgg16"} <= set(known_nets())
    assert len(read_entries(["lenet"], layout="nchw")) == 5
    assert read_entries((), [Path("lenet")], layout="nchw") == read_entries(["lenet"], layout="nchw")


def test_explain_takes_nets_models_lock_files_and_changes(model, tmp_path, device):
    chosen = json.loads(invoke("explain", PROBLEM, "--json"))
    net = json.loads(invoke("explain", "lenet", "--layout", "nchw", "--json"))
    assert len(net) == 5
    said = invoke("explain", "lenet", "--layout", "nchw").splitlines()
    assert [line.split(": ")[0].split()[1] for line in said] == [layer["problem"] for layer in net]
    assert said[0].startswith("conv1 fwd_f32_")
    layers = json.loads(invoke("explain", model, "--layout", "nchw", "--json"))
    assert layers["problem"].startswith("fwd_f32_mb1ic4ih6iw6oc4kh3kw3ph1pw1")
    other = json.loads(invoke("explain", PROBLEM, "--dtype", "float64", "--layout", "nhwc", "--json"))
    assert other["problem"] == chosen["problem"].replace("fwd_f32_", "fwd_f64_nhwc_")
    everybody = invoke("explain", PROBLEM, "-v")
    assert everybody.count("GPUs and accelerators only") > 5
    assert invoke("explain", PROBLEM).count("GPUs and accelerators only") == 1


def test_trace_and_bench_know_tables_and_lock_files(tmp_path, device, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    said = json.loads(invoke("trace", PROBLEM, "--json"))
    assert said["spent"]
    from convdispatch.selection.choice.lockfile import Decision, write

    chosen = json.loads(invoke("explain", PROBLEM, "--json"))
    config = next(one["config"] for one in chosen["solvers"] if one["status"] == "chosen")
    write(tmp_path / "net.lock", {chosen["problem"]: Decision(chosen["chosen"], config)})
    assert json.loads(invoke("explain", tmp_path / "net.lock", "--json"))["problem"] == chosen["problem"]
