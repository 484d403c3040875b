"""What a caller reads at a prompt: short words of constants, results, policies; explain of a call, and of nothing."""

from __future__ import annotations

import numpy as np
import pytest

import convdispatch as cd
from convdispatch.api.results import Result, Results


def test_words_at_a_prompt_are_short():
    assert repr(cd.constant(np.ones((64, 3, 3, 3), np.float32))) == (
        "<constant weights of float32, (64, 3, 3, 3), in ndarray>"
    )
    results = Results([Result("im2col", {"a": 1}, status="measured", median_ms=0.5), *[Result("x")] * 300])
    results.problem = cd.ConvProblem.parse("mb1ic4ih6oc4kh3")
    assert repr(results) == (
        "<Results of fwd_f32_mb1ic4ih6iw6oc4kh3kw3: im2col is the fastest, 0.5 ms; 1 of 301 candidates have times>"
    )
    assert "nothing could be measured" in repr(Results())
    assert repr(cd.Policy()) == "Policy()"
    assert repr(cd.Policy(solver="fft.*", max_error=1e-4)) == "Policy(solver='fft.*', max_error=0.0001)"
    assert len(repr(cd.explain("mb1ic4ih6oc4kh3"))) < 120


@pytest.mark.parametrize("given", [None, [[1.0]], "w"])
def test_constant_weights_are_an_array(given):
    with pytest.raises(cd.InvalidArgument, match=f"constant takes an array of weights, got {type(given).__name__}"):
        cd.constant(given)


def test_explain_takes_what_conv_takes(device):
    x, w, bias = np.ones((2, 8, 9, 9), np.float32), np.ones((6, 4, 3, 3), np.float32), np.zeros(6, np.float32)
    options = {"stride": 2, "padding": 1, "groups": 2, "activation": "relu", "math": "ieee"}
    found = cd.explain(x, cd.constant(w), bias, **options, device=device)
    assert str(found.problem) == "fwd_f32_ieee_g2mb2ic8ih9iw9oc6kh3kw3sh2sw2ph1pw1+bias+relu+constant"
    nhwc = cd.explain(x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), layout="nhwc", groups=2)
    assert str(nhwc.problem).startswith("fwd_f32_nhwc_g2mb2ic8ih9iw9oc6kh3kw3")
    assert cd.explain(str(found.problem), device).chosen == found.chosen


@pytest.mark.parametrize("given", [(), (None,), (np.ones((1, 4, 6, 6), np.float32),), (3, 4)])
def test_explain_of_nothing_is_told_in_words(given):
    if not given:
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'problem'"):
            cd.explain()
        return
    with pytest.raises(cd.InvalidArgument, match=r"explain takes a problem, such as .* or arrays x and w as conv does"):
        cd.explain(*given)
    with pytest.raises(cd.InvalidArgument, match="w of shape"):
        cd.explain(np.ones((1, 4, 6, 6), np.float32), np.ones((4, 5, 3, 3), np.float32))


def test_a_pinned_solvers_own_reason_comes_first():
    """It stood in line 89 of 118, among those that the policy does not name."""
    problem = "mb1ic4ih6oc4kh3"
    with cd.policy(solver="implicitgemm.pointwise"):
        explanation = cd.explain(problem)
        with pytest.raises(cd.NoSolver) as caught:
            cd.conv(np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32))
    assert explanation.chosen is None
    refusals = [line for line in str(explanation).splitlines() if line.startswith("  x  ")]
    assert refusals[0] == "  x  implicitgemm.pointwise: 1x1 only, got 3x3"
    assert len(refusals) == 2
    lines = str(caught.value).splitlines()
    assert lines[1] == "  implicitgemm.pointwise: 1x1 only, got 3x3"
    assert len(lines) == 3
    assert len(caught.value.reasons) > 30, "each one's reason is there for programs"
