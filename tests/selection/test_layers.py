"""Layers: trace prints what replays, validation finds each way in which a plan can break its contract."""

from __future__ import annotations

import re

import numpy as np
import pytest

import convdispatch as cd
from convdispatch.selection import dispatch
from convdispatch.selection.choice import set_aside
from convdispatch.selection.plugins import loader

PLUGIN = """
from convdispatch.api import KernelPlan, Solver, hookimpl
class {cls}(Solver):
    name = "bad.{name}"
    def rejects(self, problem, device):
        return None if problem.direction == "fwd" else "forward only"
    def plan(self, context, problem, config):
        return KernelPlan(context, __package__, "{name}.cl", problem, config,
            [("run", (1,), None, "x w y workspace")], workspace_size=64)
"""
KERNELS = {
    "beyond": "for (int i = 0; i <= N; ++i) y[i] = 1;",
    "before": "for (int i = -1; i < N; ++i) y[i] = 1;",
    "unwritten": "for (int i = 0; i < N - 1; ++i) y[i] = 1;",
    "scratch": "for (int i = 0; i < N; ++i) y[i] = 1; workspace[16] = 1;",
    "inputs": "for (int i = 0; i < N; ++i) y[i] = 1; ((global float *)x)[0] += 1;",
    "right": "for (int i = 0; i < N; ++i) y[i] = 9; workspace[15] = 1;",
    "wrong": "for (int i = 0; i < N; ++i) y[i] = i == 31 ? 8.99f : 9;",
}
WORDS = {
    "beyond": "wrote outside its output of 128 bytes: at byte 128",
    "before": "wrote outside its output of 128 bytes: at byte -4",
    "unwritten": "left 1 outputs unwritten, the first at element 31",
    "scratch": "wrote outside its workspace of 64 bytes: at byte 64",
    "inputs": "changed its input x",
    "wrong": "computed wrong: relative error .* element 31 is 8.99, float64 says 9",
}


@pytest.fixture
def bad(tmp_path, monkeypatch, read_anew):
    """Solvers that each break one rule, and one that breaks none; validation is on."""
    folder = tmp_path / "bad"
    folder.mkdir()
    text = "".join(PLUGIN.format(cls=name.title(), name=name) for name in KERNELS)
    listing = ", ".join(f"{name.title()}()" for name in KERNELS)
    (folder / "__init__.py").write_text(text + f"@hookimpl\ndef convdispatch_solvers():\n    return [{listing}]\n")
    head = "#define N (MB * OC * OH * OW)\nkernel void run(global const float *x, global const float *w, "
    for name, body in KERNELS.items():
        (folder / f"{name}.cl").write_text(head + f"global float *y, global float *workspace) {{ {body} }}\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    monkeypatch.setenv("CONVDISPATCH_LAYERS", "validation")
    read_anew()


X, W = np.ones((1, 1, 6, 6), np.float32), np.ones((2, 1, 3, 3), np.float32)


@pytest.mark.parametrize("name", WORDS)
def test_validation_finds(bad, name):
    with cd.policy(solver=f"bad.{name}", fallback=False), pytest.raises(cd.ConvDispatchError, match=WORDS[name]):
        cd.conv(X.copy(), W)


def test_validation_lets_a_right_plan_pass(bad):
    with cd.policy(solver="bad.right"):
        assert (cd.conv(X, W) == 9).all()


@pytest.mark.parametrize("name", WORDS)
def test_what_validation_finds_costs_the_solver_not_the_caller(bad, monkeypatch, tmp_path, name):
    registry = tmp_path / "registry.yaml"
    registry.write_text(f"rules:\n  - prefer: ['bad.{name}', 'im2col*']\n")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(registry))
    dispatch.forget()
    with pytest.warns(cd.ConvDispatchWarning, match=f"bad.{name} is set aside .* {WORDS[name]}"):
        y = cd.conv(x := X.copy(), W)
    assert (y == 9).all()
    assert (x == X).all()
    assert (cd.conv(X.copy(), W) == 9).all()  # and no second warning
    assert loader.plugins().layers == ["validation"]


@pytest.mark.parametrize("solver", ["im2col*", "implicitgemm.*", "winograd.*", "fft.*"])
@pytest.mark.parametrize("data", ["normal", "cancels", "scaled"])
def test_validation_compares_and_blames_no_sound_solver(bad, monkeypatch, solver, data):
    """Constant weights too, of which the plan is given the packed form; data that cancel are the caller's."""
    from convdispatch.selection.layers import validation

    compared, real = [], validation.sampled_fault
    monkeypatch.setattr(validation, "sampled_fault", lambda *a, **k: compared.append(a[0]) or real(*a, **k))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 16, 19, 21), np.float32), rng.standard_normal((24, 16, 3, 3), np.float32)
    if data == "cancels":
        x[:, 1::2], w[:, 1::2] = x[:, ::2], -w[:, ::2] * np.float32(1 + 1e-6)
    if data == "scaled":
        x *= np.exp2(rng.integers(-40, 40, x.shape)).astype(np.float32)
    with cd.policy(solver=solver):
        for weights in (w, cd.constant(w)):
            cd.conv(x, weights, padding=1, activation="relu")
            dispatch.forget()
    assert len(compared) == 2
    assert compared[1].constant_weights


@pytest.mark.parametrize("wrong", [False, True])
def test_a_packed_form_is_compared_with_the_weights_it_is_of(bad, monkeypatch, wrong):
    from convdispatch_implicitgemm.cpu.direct import Direct

    if wrong:
        real = Direct.plan

        def plan(self, context, problem, config):
            made = real(self, context, problem, config)
            pack = made.pack

            def spoilt(queue, w, packed, wait_for=None):
                import pyopencl as cl

                event = pack(queue, w, packed, wait_for)
                zero = np.zeros(1, np.float32)
                return cl.enqueue_fill_buffer(queue, packed, zero, 0, packed.size // 64 * 4, wait_for=[event])

            made.pack = spoilt
            return made

        monkeypatch.setattr(Direct, "plan", plan)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 16, 12, 12), np.float32), rng.standard_normal((32, 16, 3, 3), np.float32)
    with cd.policy(solver="implicitgemm.direct", fallback=False):
        if wrong:
            with pytest.raises(cd.PlanFailed, match="computed wrong"):
                cd.conv(x, cd.constant(w))
        else:
            cd.conv(x, cd.constant(w))


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
def test_validation_on_the_in_tree_solvers(bad, direction):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 7, 6), np.float32), rng.standard_normal((6, 2, 3, 3), np.float32)
    y = cd.conv(x, w, groups=2, stride=2, padding=[(1, 0), 2])
    with cd.policy(solver="im2col*"):
        if direction == "fwd":
            bias, residual = np.ones(6, np.float32), np.ones_like(y)
            got = cd.conv(x, w, bias, residual=residual, groups=2, stride=2, padding=[(1, 0), 2])
            np.testing.assert_allclose(got, y + 2, rtol=1e-5, atol=1e-5)
        elif direction == "bwd_data":
            assert np.isfinite(cd.conv_backward_data(y, w, x.shape, groups=2, stride=2, padding=[(1, 0), 2])).all()
        else:
            out = np.ones_like(w)
            cd.conv_backward_weights(x, y, w.shape, groups=2, stride=2, padding=[(1, 0), 2], out=out, accumulate=True)
            plain = cd.conv_backward_weights(x, y, w.shape, groups=2, stride=2, padding=[(1, 0), 2])
            np.testing.assert_allclose(out, plain + 1, rtol=1e-4, atol=1e-4)


@pytest.fixture
def trace(tmp_path, monkeypatch, read_anew):
    """Trace is on, into a file."""
    file = tmp_path / "trace.csv"
    monkeypatch.setenv("CONVDISPATCH_LAYERS", "trace")
    monkeypatch.setenv("CONVDISPATCH_TRACE", str(file))
    read_anew()
    return file


def test_trace_writes_a_line_a_call_that_reads_back(trace):
    from convdispatch.measurement.grammar import read

    cd.conv(X, W, padding=1)
    cd.conv(X, W, padding=1)
    cd.conv_backward_weights(X, np.ones((1, 2, 4, 4), np.float32), W.shape)
    _, *lines = trace.read_text().splitlines()  # behind the header
    assert len(lines) == 3
    for line, direction in zip(lines, ("fwd", "fwd", "bwd_weights"), strict=True):
        assert re.fullmatch(r"convdispatch,1,\S+,[\w.]+,.+,\d+,\d+\.\d", line)
        assert read(line).direction == direction
    assert read(lines[0]) == cd.ConvProblem(mb=1, ic=1, ih=6, iw=6, oc=2, kh=3, kw=3, ph=1, pw=1)


def test_both_layers_stack(trace, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_LAYERS", "validation,trace")
    loader.reload()
    dispatch.forget()
    assert (cd.conv(X, W) == 9).all()
    assert len(trace.read_text().splitlines()) == 2, "the header, and one call"


FAILING = """
from convdispatch.api import hookimpl
@hookimpl(wrapper=True)
def convdispatch_enqueue(queue, problem, solver, plan, x, w, y, workspace, wait_for, bias, residual):
    {before}
    event = yield
    {after}
    return event
"""
SEEING = """
from convdispatch.api import hookimpl
seen = []
@hookimpl(wrapper=True)
def convdispatch_enqueue(queue, problem, solver, plan, x, w, y, workspace, wait_for, bias, residual, weights):
    seen.append((w, weights))
    return (yield)
"""
FAILURES = {
    "before": ("raise OSError('no room')", "pass", "layer failing .* it raised OSError: no room"),
    "after": ("pass", "raise OSError('no room')", "layer failing .* it raised OSError: no room"),
    "exits": ("pass", "raise SystemExit(3)", "layer failing .* it raised SystemExit: 3"),
    "returns": ("pass", "event = None", "layer failing .* answered NoneType"),
}


@pytest.fixture
def layer(monkeypatch, read_anew, tmp_path):
    """A function that switches on a layer of this text, by the name of failing."""
    import importlib.metadata as metadata

    real = metadata.entry_points
    monkeypatch.syspath_prepend(tmp_path)
    entry = metadata.EntryPoint("failing", "failing_layer", loader.LAYER_GROUP)

    def entries(**choice):
        return [*real(**choice), entry] if choice.get("group") == loader.LAYER_GROUP else real(**choice)

    monkeypatch.setattr(metadata, "entry_points", entries)
    monkeypatch.setenv("CONVDISPATCH_LAYERS", "failing")

    def put(text):
        import sys

        sys.modules.pop("failing_layer", None)
        (tmp_path / "failing_layer.py").write_text(text)
        read_anew()

    return put


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_layers_own_failure_switches_the_layer_off_and_blames_no_solver(layer, kind, accumulate):
    before, after, words = FAILURES[kind]
    layer(FAILING.format(before=before, after=after))
    out = np.ones((1, 2, 4, 4), np.float32) if accumulate else None
    with pytest.warns(cd.ConvDispatchWarning, match=words):
        y = cd.conv(X, W, out=out, accumulate=accumulate)
    assert (y == 9 + accumulate).all()
    assert (cd.conv(X, W, out=out, accumulate=accumulate) == 9 + 10 * accumulate).all()  # and no second warning
    assert not set_aside._quarantined
    assert not loader.plugins().layers


@pytest.mark.parametrize("arrays", ["numpy", "opencl"])
def test_a_layer_sees_the_weights_of_the_call_that_it_wraps(layer, queue, arrays):
    """As the caller gave them, beside the packed form too; never those of a call before."""
    import sys

    import pyopencl.array as cl_array

    layer(SEEING)
    rng = np.random.default_rng(0)
    x, *weights = (rng.standard_normal(shape, np.float32) for shape in ((1, 16, 12, 12), *[(32, 16, 3, 3)] * 3))
    put = (lambda array: array) if arrays == "numpy" else (lambda array: cl_array.to_device(queue, array))
    with cd.policy(solver="implicitgemm.direct", fallback=False):
        for w, packed in zip(weights, (False, True, True), strict=True):
            given = cd.constant(put(w)) if packed else put(w)
            for _ in range(2):
                cd.conv(put(x), given, queue=queue)
                read, told = sys.modules["failing_layer"].seen[-1]
                assert (read is not told) == packed
                np.testing.assert_array_equal(_values(queue, told, w), w)
    assert not set_aside._quarantined


def _values(queue, memory, like):
    """What a layer's operand holds, an OpenCL buffer or the host's memory."""
    import pyopencl as cl

    if isinstance(memory, cl.MemoryObject):
        held = np.empty_like(like)
        cl.enqueue_copy(queue, held, memory)
        return held
    return memory.bytes(0, like.nbytes).view(like.dtype).reshape(like.shape)


def test_a_trace_that_cannot_be_written_is_switched_off(trace, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_TRACE", str(tmp_path / "no" / "such" / "folder"))
    with pytest.warns(cd.ConvDispatchWarning, match="layer trace is switched off .* FileNotFoundError"):
        assert (cd.conv(X, W) == 9).all()
    assert (cd.conv(X, W) == 9).all()
    assert not set_aside._quarantined


def test_a_plan_that_fails_under_a_failing_layer_is_blamed_too(trace, bad, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_LAYERS", "trace")
    monkeypatch.setenv("CONVDISPATCH_TRACE", str(tmp_path / "no" / "such" / "folder"))
    (tmp_path / "bad" / "right.cl").write_text("kernel void run(global float *x) {}")
    loader.reload()
    plan = type(loader.plugins().solvers["bad.right"])

    class Fails:
        workspace_size = 0

        def enqueue(self, *arguments, **more):
            raise RuntimeError("engine on fire")

    monkeypatch.setattr(plan, "plan", lambda *arguments: Fails())
    with (
        cd.policy(solver="bad.right", fallback=False),
        pytest.warns(cd.ConvDispatchWarning, match="layer trace is switched off"),
        pytest.raises(cd.PlanFailed, match="engine on fire"),
    ):
        cd.conv(X, W)


def test_a_trace_changes_no_result(trace):
    assert (cd.conv(X, W) == 9).all()
