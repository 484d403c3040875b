"""Parts of a problem that no solver fuses: what each solver sees, and the passes that add them, against float64."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
from plans import LARGE

from convdispatch import ConvProblem, InvalidProblem, policy
from convdispatch.api import hookimpl
from convdispatch.api.dtypes import numpy_dtype
from convdispatch.api.problem import EXTRAS
from convdispatch.api.solver import EPILOGUE, PARTS
from convdispatch.device import runtime
from convdispatch.device.executable import NORM, SAVED, SUMS, X, Y
from convdispatch.measurement import reference
from convdispatch.measurement.search.trial import Harness, WrongResult
from convdispatch.measurement.search.trialdata import error_limit, random_operands
from convdispatch.selection import dispatch
from convdispatch.selection.layer_chain import run_layered
from convdispatch.selection.plugins.loader import plugins
from convdispatch.selection.visible_problem import operand_sizes, unfused_seconds, visible_problem


class Fuses:
    """A solver that fuses some parts."""

    def __init__(self, *parts):
        self.fuses = frozenset(parts)


@pytest.mark.parametrize(("text", "parts", "seen"), [
    ("mb1ic4ih5oc4kh3+bias+relu+sums", EPILOGUE, "mb1ic4ih5oc4kh3+bias+relu"),
    ("mb1ic4ih5oc4kh3+bias+relu+sums", PARTS, "mb1ic4ih5oc4kh3+bias+relu+sums"),
    # Sums are of the finished result, so nothing may follow them.
    ("mb1ic4ih5oc4kh3+bias+relu+sums", PARTS - {"activation"}, "mb1ic4ih5oc4kh3+bias"),
    ("mb1ic4ih5oc4kh3+bias+sums", {"sums"}, "mb1ic4ih5oc4kh3"),
    # A norm before the convolution bears on no later part, one behind a data gradient does.
    ("mb1ic4ih5oc4kh3+norm(relu)+bias+sums", PARTS - {"norm"}, "mb1ic4ih5oc4kh3+bias+sums"),
    ("bwd_weights_mb1ic4ih5oc4kh3+norm(relu)+accumulate", EPILOGUE, "bwd_weights_mb1ic4ih5oc4kh3+accumulate"),
    ("bwd_data_mb1ic4ih5oc4kh3+residual+norm(relu)+sums", PARTS - {"residual"}, "bwd_data_mb1ic4ih5oc4kh3"),
    ("bwd_data_mb1ic4ih5oc4kh3+residual+norm(relu)+sums", PARTS - {"sums"},
     "bwd_data_mb1ic4ih5oc4kh3+residual+norm(relu)"),
    ("bwd_data_mb1ic4ih5oc4kh3+norm(relu)+sums", {"sums"}, "bwd_data_mb1ic4ih5oc4kh3"),
    ("mb1ic4ih5oc4kh3+bias+accumulate", {"accumulate"}, "mb1ic4ih5oc4kh3"),
])  # fmt: skip
def test_a_solver_sees_the_parts_that_it_fuses(text, parts, seen):
    assert visible_problem(Fuses(*parts), ConvProblem.parse(text)) == ConvProblem.parse(seen)


@pytest.mark.parametrize(("text", "reason"), [
    ("mb1ic4ih5oc4kh3+sums+accumulate", "written once"),
    ("mb0ic4ih5oc4kh3+sums", "1 or more for sums"),
    ("bwd_weights_mb1ic4ih5oc4kh3+sums", "channels of pixels"),
    ("bwd_data_mb1ic4ih5oc4kh3+sums", "they need norm"),
    ("bwd_data_mb1ic4ih5oc4kh3+norm(relu)+relu", "no bias, activation or accumulate"),
    ("mb1ic4ih5oc4kh3+norm(nothing)", "activation must be"),
    ("u8s8s32_mb1ic4ih5oc4kh3+norm(relu)", "floating-point"),
])  # fmt: skip
def test_parts_that_cannot_stand_together(text, reason):
    with pytest.raises(InvalidProblem, match=reason):
        ConvProblem.parse(text)


def test_a_pass_that_is_not_fused_costs_the_bytes_that_it_moves():
    plain = ConvProblem.parse("mb64ic64ih56oc64kh1")
    assert unfused_seconds(Fuses(), plain, LARGE) == 0
    sums = unfused_seconds(Fuses(), plain.replace(sums=True), LARGE)
    norm = unfused_seconds(Fuses(), plain.replace(norm="relu"), LARGE)
    mask = unfused_seconds(Fuses(), plain.replace(direction="bwd_data", norm="relu"), LARGE)
    assert 0 < sums < norm < mask
    assert unfused_seconds(Fuses(*PARTS), plain.replace(norm="relu", sums=True), LARGE) == 0


@pytest.mark.parametrize("text", [
    "mb2ic8ih8oc8kh3ph1+bias+relu+sums",
    "nhwc_f16_mb2ic8ih8oc6kh3ph1+norm(silu)+sums",
    "bwd_weights_mb2ic8ih8oc8kh3ph1+norm(relu)",
    "bwd_data_nhwc_mb2ic6ih9oc8kh3ph1+residual+norm(gelu)+sums",
    "bwd_data_bf16_mb2ic8iw9oc8kw3pw1+norm(leaky_relu(0.1))",
    "f64_mb2ic4id3oc8kd3pd1+bias+norm(identity)+sums",
])  # fmt: skip
def test_the_passes(queue, text):
    """Solvers of im2col fuse neither norms nor sums; what is recorded has their launches too."""
    problem = ConvProblem.parse(text)
    host = random_operands(problem, 3)
    memory = {name: runtime.fresh(queue, array.nbytes, array) for name, array in host.items()}
    written = np.zeros(problem.out_shape, numpy_dtype(problem.written_dtype))
    sums = np.zeros(*problem.form("sums")) if problem.sums else np.zeros(1)
    memory |= {problem.written: runtime.fresh(queue, written.nbytes), "sums": runtime.fresh(queue, sums.nbytes)}
    with policy(solver="im2col*"):
        prepared = dispatch.prepare(problem, queue.context)
        dispatch.run(prepared, queue, [memory.get(name) for name in ("x", "w", "y", *EXTRAS)]).wait()
    cl.enqueue_copy(queue, written, memory[problem.written])
    cl.enqueue_copy(queue, sums, memory["sums"])
    assert reference.relative_error(written, reference.compute(problem, **host)) <= error_limit(problem)
    assert not problem.sums or reference.sums_fault(problem, written, sums, host) is None
    executable = prepared.executable(queue)
    assert not executable.opaque
    assert executable.operands == tuple(size or None for size in operand_sizes(problem))
    assert executable.outputs == ((Y if problem.written == "y" else X,) if problem.written != "w" else (1,)) + (
        (SUMS,) if problem.sums else ()
    )
    used = {number for launch in executable.launches for _, number, _ in launch.memory}
    assert (NORM in used, SAVED in used) == (problem.norm is not None, problem.masked)


class FusingPlan:
    """A plan that notes what it is given."""

    recordable, workspace_size = False, 0

    def enqueue(self, queue, x, w, y, workspace, wait_for=None, **extras):
        self.extras = extras
        return cl.enqueue_marker(queue)


def test_a_fused_norm_passes_by_the_layers(queue, monkeypatch):
    """The layers' hook has no operands for norm and sums: the plan gets them all the same, without the layers."""
    problem, plan = ConvProblem.parse("mb1ic4ih5oc4kh3+bias+norm(relu)+sums"), FusingPlan()
    seen = {}

    class Layer:
        @hookimpl
        def convdispatch_enqueue(self, queue, plan, x, w, y, workspace, wait_for, bias):
            seen["bias"] = bias
            return plan.enqueue(queue, x, w, y, workspace, wait_for, bias=bias)

    layer = Layer()
    plugins().manager.register(layer, name="layer test")
    monkeypatch.setattr(plugins(), "layers", ["test"])
    try:
        operands = ("x", "w", "y", "bias", None, "norm", None, "sums")
        run_layered(problem, Fuses(*PARTS), plan, queue, operands, workspace=None, wait_for=None).wait()
    finally:
        plugins().manager.unregister(layer)
    assert seen == {"bias": "bias"}
    assert plan.extras == {"bias": "bias", "norm": "norm", "sums": "sums"}


def test_find_refuses_wrong_sums(queue, monkeypatch):
    problem = ConvProblem.parse("mb2ic8ih8oc8kh3ph1+sums")
    with policy(solver="im2col"):
        prepared = dispatch.prepare(problem, queue.context)
    harness = Harness(problem, queue)
    assert harness.verify(prepared).error <= error_limit(problem)
    monkeypatch.setattr(prepared._unfused, "_sums", prepared._unfused._sums[:-1])  # the last launch writes ``sums``
    with pytest.raises(WrongResult, match="count of channel 0"):
        Harness(problem, queue).verify(prepared)
