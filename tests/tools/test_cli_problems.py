"""Problems through the commands: files of any dialect measured, traces replayed."""

from __future__ import annotations

import json
import re

import pytest
from command_line import run_cli
from paths import ROOT

import convdispatch as cd
from convdispatch.measurement import shapes
from convdispatch.selection.plugins import loader
from convdispatch.tools.benchmark import run as running

SAME = cd.ConvProblem.parse("mb2ic4ih9oc6kh3ph1")


@pytest.fixture
def quick(monkeypatch):
    peak = {"rate": 1e11, "how": "invented", "count": 1}
    roof = {"dtype": "float32", "flops": peak, "bandwidth": peak, "matrix": None}
    monkeypatch.setattr(running, "measure_roof", lambda device, dtype: roof)
    monkeypatch.setattr(running, "asdict", dict)


@pytest.mark.parametrize(
    "line",
    [
        str(SAME),
        "mb2ic4ih9oc6oh9kh3ph1",
        "MIOpenDriver conv -n 2 -c 4 -H 9 -W 9 -k 6 -y 3 -x 3 -p 1 -q 1",
        "(9, 9, 4, 2, 6, 3, 3, 1, 1, 1, 1)",
    ],
)
def test_a_file_of_each_dialect_is_measured(device, quick, line, tmp_path):
    file = tmp_path / "layers.txt"
    file.write_text(line + "\n")
    run_cli("bench", "--from", file, "--no-find", "--no-isolate", "--json", tmp_path / "r.json", status=0)
    found = json.loads((tmp_path / "r.json").read_text())["measured"]
    assert [cd.ConvProblem.parse(text) for text in found] == [SAME]
    assert all(each["best"]["median_ms"] > 0 for each in found.values())


def test_a_trace_is_measured_with_its_counts(device, quick, tmp_path):
    import numpy as np

    trace = tmp_path / "trace.csv"
    patch = pytest.MonkeyPatch()
    patch.setenv("CONVDISPATCH_LAYERS", "trace")
    patch.setenv("CONVDISPATCH_TRACE", str(trace))
    loader.reload()
    try:
        x, w = np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
        for _ in range(3):
            y = cd.conv(x, w, padding=1)
        cd.conv_backward_data(y, w, x.shape, padding=1)
    finally:
        patch.undo()
        loader.reload()
    run_cli("bench", "--from", trace, "--no-find", "--no-isolate", "--json", tmp_path / "r.json", status=0)
    layers = json.loads((tmp_path / "r.json").read_text())["layers"]
    counts = {layer["problem"]: layer["count"] for layer in layers}
    assert counts == {"fwd_f32_mb1ic3ih8iw8oc4kh3kw3ph1pw1": 3, "bwd_data_f32_mb1ic3ih8iw8oc4kh3kw3ph1pw1": 1}


@pytest.mark.parametrize("command", ["bench", "find", "explain", "trace"])
@pytest.mark.parametrize(("name", "meant"), [("resnet51", "resnet50"), ("mobilnet", "mobilenet"), ("nosuchthing", "")])
def test_an_unknown_net_lists_the_nets_there_are(command, name, meant):
    done = run_cli(command, name, status=1)
    assert f"no net is named {name!r}; there are alexnet, " in done.output
    assert all(net in done.output for net in shapes.names())
    assert (f"did you mean {meant}?" in done.output) if meant else ("did you mean" not in done.output)


def test_a_problem_with_a_wrong_letter_is_no_net(tmp_path):
    done = run_cli("find", "mb1ic4qq7kh3")
    assert "no net" not in done.output
    assert "cannot read" in done.output
    file = tmp_path / "layers"
    file.write_text("mb1ic3ih8oc4kh3\n")
    assert "name it with --from" in run_cli("find", str(file)).output


def test_every_net_stands_in_the_help_and_in_the_documentation():
    told = run_cli("bench", "--help").output
    page = (ROOT / "docs" / "use" / "choose-algorithms.md").read_text()
    for net in shapes.names():
        assert re.search(rf"\b{net}\b", told), net
        assert f"`{net}`" in page, net
