"""Host arrays on a device that takes no pointers of the host's: the executable is launched between copies.

A CPU device stands for one that lacks fine-grained system SVM: as PoCL, with buffers over the host's memory, and as a
GPU, with buffers of its pool.
"""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
from checking import call, make_operands

import convdispatch as cd
from convdispatch import ConvProblem
from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.calls import host_call
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.executable import Executable
from convdispatch.device.places import copies
from convdispatch.device.places import queue as queue_place
from convdispatch.selection import dispatch
from convdispatch.selection.choice import set_aside

TEXTS = (
    "mb2ic16ih9oc24kh3ph1+bias", "mb1ic16ih5oc16kh3ph1+bias+residual+relu", "mb2ic8ih7oc12kh3ph1+accumulate",
    "bwd_data_mb2ic8ih7oc12kh3ph1", "bwd_weights_mb3ic6ih9oc8kh3ph1+accumulate", "nhwc_mb2ic8ih6oc16kh3ph1+bias",
    "f64_mb1ic5ih6oc7kh1+bias",
)  # fmt: skip


@pytest.fixture(params=[True, False], ids=["over the host's memory", "pooled"], autouse=True)
def runs(request, monkeypatch):
    """How often an executable ran between copies, and whether the operands fitted."""
    found, own = [], copies.CopyLaunches.run
    monkeypatch.setattr(host_call, "has_system_svm", lambda device: False)
    monkeypatch.setattr(host_memory, "has_system_svm", lambda device: False)
    monkeypatch.setattr(copies, "_shares_memory", lambda device: request.param)

    def run(self, *rest):
        found.append(own(self, *rest))
        return found[-1]

    monkeypatch.setattr(copies.CopyLaunches, "run", run)
    dispatch.forget()
    yield found
    dispatch.forget()


def guarded(shape, dtype):
    """An array of NaN amid bytes that nobody may touch, and these."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = np.full(size + 512, 0xA5, np.uint8)
    array = block[256 : 256 + size].view(dtype).reshape(shape)
    array[...] = np.nan
    return array, (block[:256], block[256 + size :])


@pytest.mark.parametrize("constant", [False, True], ids=["weights", "constant"])
@pytest.mark.parametrize("text", TEXTS)
def test_operands_that_change_and_guard_zones(text, constant, runs):
    problem = ConvProblem.parse(text)
    if constant and problem.direction == "bwd_weights":
        pytest.skip("weights are written")
    cases = [make_operands(problem, seed=seed) for seed in range(2)]
    kept = [operands.present() for operands, _ in cases]
    promised = [cd.constant(arrays["w"]) if constant else arrays.get("w") for arrays in kept]
    for turn in (0, 1, 1, 0):
        arrays = {name: array for name, array in kept[turn].items() if name != "initial"}
        if constant:
            arrays["w"] = promised[turn]
        out, zones = guarded(problem.out_shape, cases[turn][1].dtype if problem.dtype == "float64" else np.float32)
        if problem.accumulate:
            out[...] = kept[turn]["initial"]
        made = call(problem, arrays, out)
        assert made is out
        expected = cases[turn][1]
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
        for zone in zones:
            assert (zone == 0xA5).all()
        if not problem.accumulate:
            made = call(problem, arrays)
            np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
    assert runs.count(True) >= 4


def test_a_result_over_an_operand_and_arrays_with_gaps(runs):
    problem = ConvProblem.parse("mb2ic8ih1iw1oc8kh1kw1")
    (arrays, expected), (other, theirs) = (
        (operands.present(), expected) for operands, expected in (make_operands(problem, seed=s) for s in range(2))
    )
    for _ in range(3):
        x = arrays["x"].copy()
        assert call(problem, {"x": x, "w": arrays["w"]}, out=x) is x
        np.testing.assert_array_equal(x, expected)
    assert runs == [False, True] * 3, "kernels take a result of their own"
    wide = np.repeat(other["x"], 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(call(problem, {"x": wide, "w": other["w"]}), theirs)
    held = np.zeros((2, 16, 1, 1), np.float32)
    np.testing.assert_array_equal(call(problem, other, out=held[:, ::2]), theirs)
    assert not held[:, 1::2].any()
    swapped = {name: array.astype(">f4") for name, array in other.items()}
    np.testing.assert_array_equal(call(problem, swapped), theirs)


def test_an_opaque_plan_runs_between_copies(runs, monkeypatch):
    problem = ConvProblem.parse("mb1ic24ih1iw1oc72kh1kw1")
    operands, expected = make_operands(problem, seed=0)
    monkeypatch.setattr(Executable, "of", classmethod(lambda cls, recording, *rest: cls(None, *rest)))
    for _ in range(3):
        np.testing.assert_array_equal(call(problem, operands.present()), expected)
    assert runs == [True] * 3


@pytest.mark.parametrize("constant", [False, True], ids=["weights", "constant"])
def test_launches_that_fail_set_the_solver_aside(constant, monkeypatch):
    problem = ConvProblem.parse("mb1ic16ih5oc16kh1+bias")
    operands, expected = make_operands(problem, seed=0)
    arrays = operands.present()
    arrays["w"] = cd.constant(arrays["w"]) if constant else arrays["w"]
    for _ in range(3):
        np.testing.assert_array_equal(call(problem, arrays), expected)
    monkeypatch.setattr(queue_place, "_enqueue", lambda *_: (_ for _ in ()).throw(cl.LogicError("no more words")))
    try:
        with pytest.warns(ConvDispatchWarning, match="is set aside .* it failed as it ran: .*no more words"):
            np.testing.assert_array_equal(call(problem, arrays), expected)
    finally:
        set_aside.forgive()
        dispatch.forget()


def test_quantized_calls_and_an_out_of_order_queue(device):
    random = np.random.default_rng(0)
    x, w = random.integers(0, 9, (1, 4, 7, 6)).astype(np.uint8), random.integers(-9, 9, (8, 4, 3, 3)).astype(np.int8)
    bytes_ = cd.Quantization(x_scale=0.5, w_scale=0.5, y_scale=4.0, dtype="int8")
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(runtime.context(device), properties=properties)
    found = [cd.conv(x, w, padding=1, quantization=bytes_, queue=given) for given in (None, queue, queue, queue)]
    whole = cd.conv(x.astype(np.float64), w.astype(np.float64), padding=1)
    for each in found:
        np.testing.assert_array_equal(each, np.clip(np.rint(whole / 16), -128, 127).astype(np.int8))


def test_pytorchs_tensors_go_this_way_too(runs, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct
    from convdispatch.torch.dispatch import native

    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # each size waits for its kernel
    native.forget()
    x, layer = torch.randn(2, 12, 6, 6), torch.nn.Conv2d(12, 8, 3, padding=1)
    expected = torch.nn.functional.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)
    runs.clear()
    with ct.enable():
        for form in (torch.contiguous_format, torch.channels_last):
            for given in (x.contiguous(memory_format=form), x.repeat_interleave(2, -1)[..., ::2]):
                found = layer(given)
                assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert runs.count(True) == 4
    native.forget()
