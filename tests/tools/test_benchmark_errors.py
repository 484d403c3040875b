"""The benchmark tells errors on normal and on scaled data beside times: ours, the chosen solver's, a peer's."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from test_benchmark import TINY, example

from convdispatch.api import ConvProblem
from convdispatch.device import runtime
from convdispatch.tools.benchmark.measuring import peers, session
from convdispatch.tools.benchmark.terminal import show


def test_a_peer_has_both_errors_as_ours_have(device, monkeypatch):
    """Read from the report: of normal data, and of data whose images, channels and summed axis differ in scale."""
    pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    monkeypatch.setattr(session, "ROUNDS", (2, 2))
    found, _ = peers.load(["torch"], runtime.device_info(device))
    for text in (TINY, TINY.replace("fwd", "bwd_weights")):
        problem = ConvProblem.parse(text)
        times = session.Session(device, peers=found, search=False).measure(problem).peers
        assert {time.variant for time in times} == {"nchw", "nhwc"}
        for time in times:
            assert 0 < time.error < 1e-5
            assert 0 < time.error_scaled < 1e-5


def test_both_errors_are_shown():
    report = example()
    found = next(iter(report.measured.values()))
    found.best.error, found.best.error_scaled = 1e-7, 2e-3
    found.chosen.error, found.chosen.error_scaled = 3e-7, 4e-7
    found.peers[1].error, found.peers[1].error_scaled = 5e-7, 6e-7
    console = Console(width=240, record=True, file=io.StringIO())
    show(report, console)
    text = console.export_text()
    assert all(words in text for words in ("1e-07 2e-03", "3e-07 4e-07", "5e-07 6e-07"))
    assert "1e-07" in json.dumps(report.to_json())
