"""``python -m bench first_step`` for a moment: what its processes find is what its rows tell."""

import json
import os
import sys

import pytest
import torch

import convdispatch.torch as ct


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, of a model of one small layer on the CPU."""
    from bench.cases import first_step as module

    def build():
        model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Flatten())
        return model.train("-train-" in os.environ["FIRST_STEP_ROW"]), torch.randn(2, 4, 12, 12)

    monkeypatch.setattr(module, "build", build)
    monkeypatch.setattr(module, "CLASSES", 8 * 10 * 10)
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # which the script sets
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "kernels"))
    yield module
    ct.disable()
    ct.reset_counters()


@pytest.mark.parametrize("what", ["train", "infer"])
def test_a_row_tells_what_its_processes_find(script, what, monkeypatch, capsys, tmp_path):
    row = f"one-{what}-float32"
    monkeypatch.setenv("FIRST_STEP_ROW", row)
    asked, told = [], []

    def run(mode, row, arguments, caches):
        asked.append(mode)
        script.child(mode, 0.0)
        ct.disable()
        *lines, found = capsys.readouterr().out.splitlines()
        told.extend(lines)
        return json.loads(found)

    monkeypatch.setattr(script, "run", run)
    words = ["--rows", row, "--modes", "torch,cold,warm", "--json", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", ["first_step.py", *words])
    script.main()
    told += capsys.readouterr().out.splitlines()
    assert asked == ["torch", "cold", "warm"]
    assert [text.split()[:2] for text in told] == [[row, "cold"], [row, "warm"]], "PyTorch's own is beside each"
    found = json.loads((tmp_path / "found.json").read_text())[row]
    assert set(found) == {"torch", "cold", "warm"}
    assert found["cold"]["ours"] >= 2
