"""Peers of the benchmark against the reference, and peers that are not there."""

from __future__ import annotations

import numpy as np
import pytest

from convdispatch.api import ConvProblem
from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.measurement.search.trialdata import operands_of, random_operands
from convdispatch.tools.benchmark import peers, session

PEER_PROBLEMS = [
    "mb2ic6ih9iw7oc4kh3kw2sh2sw1ph1pw0",
    "g2mb2ic6ih9oc4kh3ph1dh2",
    "g4mb1ic4ih9oc4kh3sh2ph1",
    "mb1ic4ih9oc6kh1+bias+relu",
    "mb1ic4ih9iw9oc6kh3kw3ph0pw1ph_r1pw_r2",
]
CPU = type("Info", (), {"type": "cpu", "vendor": "intel", "compute_units": 1})()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", PEER_PROBLEMS)
@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_peers_compute_the_same_convolution(name, text, direction, layout):
    pytest.importorskip(name)
    pytest.importorskip("onnx")
    problem = ConvProblem.parse(text)
    if direction != "fwd":
        problem = problem.replace(direction=direction, bias=False, activation=None)
    problem = problem.replace(layout=layout)
    host = random_operands(problem, 0)
    (peer,), _ = peers.load([name], CPU)
    one_sided = (problem.ph, problem.pw) != (problem.ph_r, problem.pw_r)
    if direction != "fwd" and (name == "onnxruntime" or one_sided):
        with pytest.raises(peers.Unable):
            peer.variants(problem, host, 2)
        return
    variants = peer.variants(problem, host, 2)
    expected = reference.compute(problem, **operands_of(problem, host))
    for variant in variants:
        variant.run(3)
        got = np.asarray(variant.result())
        assert got.shape == expected.shape
        assert reference.relative_error(got, expected) < 1e-5, variant.name


def test_unknown_peers_are_refused_and_missing_ones_said():
    with pytest.raises(InvalidArgument, match="torch, onnxruntime"):
        peers.load(["cutlass"], CPU)
    tpu = type("Info", (), {"type": "accelerator", "vendor": "x", "compute_units": 1, "__str__": lambda self: "TPU"})()
    pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    found, missing = peers.load(["torch"], tpu)
    assert not found
    assert "TPU" in missing["torch"]


def test_a_peer_has_both_errors_as_ours_have(device, monkeypatch):
    """Read from the report: of normal data, and of data whose images, channels and summed axis differ in scale."""
    pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    monkeypatch.setattr(session, "ROUNDS", (2, 2))
    found, _ = peers.load(["torch"], runtime.device_info(device))
    for direction in ("fwd", "bwd_weights"):
        problem = ConvProblem.parse(f"{direction}_f32_mb1ic4ih6iw6oc4kh3kw3")
        times = session.Session(device, peers=found, search=False).measure(problem).peers
        assert {time.variant for time in times} == {"nchw", "nhwc"}
        for time in times:
            assert 0 < time.error < 1e-5
            assert 0 < time.error_scaled < 1e-5
