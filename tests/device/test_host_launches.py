"""Warm calls on the host's memory: the plan's launches are given again, on whatever operands each call brings."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyopencl as cl
import pytest
from checking import call, make_operands
from host_programs import ADD, TEXTS, solvers

import convdispatch as cd
from convdispatch import ConvProblem
from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.calls.host_call import HostCall
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.commands.recording import Recording
from convdispatch.device.executable import Executable
from convdispatch.device.places import host
from convdispatch.device.places.host import HostEnqueue, HostLaunches, HostPlace
from convdispatch.device.programs.kernels import Launch, build
from convdispatch.measurement import reference
from convdispatch.selection import dispatch
from convdispatch.selection.choice import ranking, set_aside


@pytest.fixture(autouse=True)
def given(device, monkeypatch):
    """How often launches were given, and how often operands did not fit."""
    if not host_memory.has_system_svm(device):
        pytest.skip("the device has no fine-grained system SVM: buffers over the host's memory stay")
    found, own = [], HostLaunches.run

    def run(self, *rest):
        found.append(own(self, *rest))
        return found[-1]

    monkeypatch.setattr(HostLaunches, "run", run)
    return found


def turns(problem, count):
    """Operands and what they give, of several calls in turn."""
    return [
        (operands.present(), expected) for operands, expected in (make_operands(problem, seed=s) for s in range(count))
    ]


@pytest.mark.parametrize("constant", [False, True], ids=["weights", "constant"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_solvers_launches_serve_operands_that_change(device, text, constant, given):
    problem = ConvProblem.parse(text)
    if constant and problem.direction == "bwd_weights":
        pytest.skip("weights are written")
    cases = turns(problem, 3)
    kept = [{n: cd.constant(a) if constant and n == "w" else a for n, a in arrays.items()} for arrays, _ in cases]
    queues = [runtime.queue(device), runtime.serial_queue(device)]
    ran = 0
    for name in solvers(problem.replace(constant_weights=constant), device):
        exact = ranking.contestants(problem, runtime.device_info(device))[name].exact
        given.clear()
        with cd.policy(solver=name, fallback=False):
            for turn, queue in itertools.product((0, 1, 2, 2, 0, 1), filter(None, queues)):
                out = np.full(problem.out_shape, np.nan, kept[0]["x" if "x" in kept[0] else "y"].dtype)
                for made in (call(problem, kept[turn], queue=queue), call(problem, kept[turn], out, queue)):
                    expected = cases[turn][1]
                    limit = 0 if exact else 1e-3 * np.abs(expected).max() * (30 if problem.dtype == "float16" else 1)
                    np.testing.assert_allclose(made, expected, rtol=0, atol=limit, err_msg=f"{name}, operands {turn}")
        ran += len(given) > 10
    assert ran, "no solver's launches were given again"


@pytest.mark.parametrize("serial", [False, True])
def test_launches_on_parts_of_operands_and_of_scratch_memory(device, serial):
    """y = x's second half + w, by way of the second of two areas that the recording asked for."""
    queue = (serial and runtime.serial_queue(device)) or runtime.queue(device)
    add = Launch(build(runtime.context(device), ADD), "add", (1,), (1,), ("a", "b", "c", np.int32(3)), names="abc")
    recording = Recording(queue)
    x, w, y = (recording.allocate(size) for size in (32, 12, 12))
    first, second = recording.allocate(12), recording.allocate(20)
    half, part = x.get_sub_region(16, 12), second.get_sub_region(8, 12)
    add(recording, (half, w, first))
    add(recording, (first, w, part))
    add(recording, (part, half, y))
    launches = Executable.of(recording, (x, w, y, None), [2]).bind(HostPlace(device))
    random = np.random.default_rng(0)
    held = [[random.standard_normal(size).astype(np.float32) for size in (8, 3, 3)] for _ in range(2)]
    for turn in (0, 1, 1, 0):
        operands = held[turn]
        operands[2][:] = np.nan
        assert launches.run(queue, [*(array.ctypes.data for array in operands), 0])
        np.testing.assert_allclose(operands[2], 2 * (operands[0][4:7] + operands[1]), rtol=1e-6)
    assert not launches.run(queue, [0, 0, 0, 0]), "an operand without an address"
    over = held[0][0].ctypes.data
    assert not launches.run(queue, [over, held[0][1].ctypes.data, over + 28, 0]), "the result over an operand"
    add(recording, (x, w.get_sub_region(4, 8), y))
    copies = Recording(queue)
    copies.copy(y, x, 12)
    assert type(Executable.of(copies, (x, w, y), [2]).bind(HostPlace(device))) is HostEnqueue


def test_a_result_over_an_operand_and_arrays_with_gaps_go_the_general_way(given):
    problem = ConvProblem.parse("mb2ic8ih1iw1oc8kh1kw1")
    (arrays, expected), (other, theirs) = turns(problem, 2)
    for _ in range(3):
        made = call(problem, arrays, out=np.empty(problem.out_shape, np.float32))
        np.testing.assert_array_equal(made, expected)
    assert given == [True] * 3
    given.clear()
    for turn in range(2):  # the same operands once more: what did not fit is not remembered
        x = arrays["x"].copy()
        assert call(problem, {"x": x, "w": arrays["w"]}, out=x) is x
        np.testing.assert_array_equal(x, expected, err_msg=f"turn {turn}")
    assert given == [False, True] * 2, "kernels take a result of their own"
    wide = np.repeat(other["x"], 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(call(problem, {"x": wide, "w": other["w"]}), theirs)
    np.testing.assert_array_equal(call(problem, other), theirs)
    held = np.zeros((2, 16, 1, 1), np.float32)
    np.testing.assert_array_equal(call(problem, other, out=held[:, ::2]), theirs)
    np.testing.assert_array_equal(held[:, ::2], theirs)
    assert not held[:, 1::2].any()


def test_operands_that_are_only_read_may_be_read_only_and_results_may_not(given):
    problem = ConvProblem.parse("mb1ic8ih3oc8kh3ph1+bias")
    ((arrays, expected),) = turns(problem, 1)
    for array in arrays.values():
        array.flags.writeable = False
    for w in (arrays["w"], cd.constant(arrays["w"])):
        given.clear()
        for _ in range(3):
            np.testing.assert_array_equal(call(problem, {**arrays, "w": w}), expected)
        assert given == [True] * 3
    locked = np.empty(problem.out_shape, np.float32)
    call(problem, arrays, out=locked)
    locked.flags.writeable = False
    with pytest.raises(cd.InvalidArgument, match="out must be writeable"):
        call(problem, arrays, out=locked)


def test_packed_weights_are_never_taken_for_others(given):
    """Promises come and go: neither an address nor an object's id tells them."""
    problem = ConvProblem.parse("mb1ic16ih5oc16kh3ph1")
    cases = turns(problem, 4)
    for arrays, expected in cases * 5:
        w = cd.constant(arrays["w"].copy())
        for _ in range(2):
            np.testing.assert_array_equal(call(problem, {"x": arrays["x"], "w": w}), expected)
        del w
    assert len(given) >= 20


def test_an_out_of_order_queue_keeps_the_launches_order(device):
    queue = cl.CommandQueue(
        runtime.context(device), properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    )
    problem = ConvProblem.parse("mb2ic16ih14oc16kh3ph1")
    cases = turns(problem, 2)
    for name in ("winograd.f2x3", "im2col"):
        with cd.policy(solver=name, fallback=False):
            for arrays, expected in cases * 4:
                np.testing.assert_allclose(call(problem, arrays, queue=queue), expected, atol=0.05)


def test_threads_have_arguments_of_their_own(given):
    problem = ConvProblem.parse("mb1ic24ih1iw1oc72kh1kw1")
    cases = turns(problem, 8)

    def work(number):
        arrays, expected = cases[number]
        w = cd.constant(arrays["w"]) if number % 2 else arrays["w"]
        for _ in range(300):
            out = np.full(problem.out_shape, np.nan, np.float32)  # what an earlier call wrote there would be right
            np.testing.assert_array_equal(call(problem, {**arrays, "w": w}, out), expected)
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(each.result(120) for each in [pool.submit(work, number) for number in range(8)])
    finally:
        sys.setswitchinterval(interval)
    assert len(given) > 2000


@pytest.mark.parametrize("constant", [False, True], ids=["weights", "constant"])
def test_launches_that_fail_set_the_solver_aside_and_the_next_one_runs(constant, monkeypatch):
    problem = ConvProblem.parse("mb1ic16ih5oc16kh1+bias")
    ((arrays, expected),) = turns(problem, 1)
    arrays["w"] = cd.constant(arrays["w"]) if constant else arrays["w"]
    for _ in range(3):
        np.testing.assert_array_equal(call(problem, arrays), expected)

    def fails(*arguments):
        raise cl.LogicError("the driver has no more words")

    monkeypatch.setattr(host, "_enqueue", fails)
    try:
        with pytest.warns(ConvDispatchWarning, match="is set aside .* it failed as it ran: .*no more words"):
            np.testing.assert_array_equal(call(problem, arrays), expected)
    finally:
        set_aside.forgive()
        dispatch.forget()


@pytest.mark.parametrize("text", ["mb1ic16ih5oc16kh3ph1+bias+residual+relu", "mb1ic16ih5oc16kh3ph1+accumulate",
                                  "bwd_weights_mb2ic8ih5oc8kh3ph1+accumulate"])  # fmt: skip
def test_residuals_and_sums_are_operands_like_others(text, given):
    problem = ConvProblem.parse(text)
    cases = turns(problem, 2)
    for turn in (0, 1, 1, 0):
        arrays, expected = cases[turn]
        out = arrays["initial"].copy() if problem.accumulate else None
        present = {name: array for name, array in arrays.items() if name != "initial"}
        made = call(problem, present, out)
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
    assert given == [True] * 4


@pytest.mark.parametrize("constant", [False, True])
def test_quantized_calls_take_launches_too(constant, given, monkeypatch):
    random = np.random.default_rng(0)
    w = random.integers(-9, 9, (8, 4, 3, 3)).astype(np.int8)
    cases = [random.integers(0, 255, (1, 4, 7, 6)).astype(np.uint8) for _ in range(2)]
    residual, out = random.integers(0, 255, (1, 8, 7, 6)).astype(np.uint8), np.empty((1, 8, 7, 6), np.uint8)
    bytes_ = cd.Quantization(x_scale=0.1, x_zero_point=3, w_scale=0.1, y_scale=2.0, dtype="uint8", residual_scale=0.5)
    weights = cd.constant(w) if constant else w
    prepare = dispatch.prepare
    expected = [
        np.clip(np.rint((exact(x, w) * np.float32(0.1 * 0.1) + (residual * np.float32(0.5))) / np.float32(2.0)), 0, 255)
        for x in cases
    ]
    for turn in (0, 1, 1, 0):
        made = cd.conv(cases[turn], weights, padding=1, residual=residual, quantization=bytes_, out=out)
        assert made is out
        assert np.abs(made.astype(int) - expected[turn]).max() <= 1, "rounding of a half"
        monkeypatch.setattr(dispatch, "prepare", lambda *_: pytest.fail("a warm call asks for its plan"))
    monkeypatch.setattr(dispatch, "prepare", prepare)
    assert given == [True] * 4


def exact(x, w):
    """The sums of a quantized convolution with padding 1 and a zero point of 3."""
    problem = ConvProblem.parse("mb1ic4ih7iw6oc8kh3kw3ph1pw1")
    return reference.compute(problem, x=x.astype(np.float64) - 3, w=w.astype(np.float64))


def test_a_plan_is_enqueued_once_whatever_it_is_launched_on(device, queue):
    """On a recording: by NumPy's arrays, arrays on a queue and PyTorch's tensors alike."""
    problem = ConvProblem.parse("mb1ic16ih5oc16kh3ph1")
    ((arrays, expected),) = turns(problem, 1)
    dispatch.forget()
    plan, seen = dispatch.prepare(problem, runtime.context(device)).plan, []
    plan.enqueue = lambda *given, own=plan.enqueue, **more: seen.append(type(given[0])) or own(*given, **more)
    on_queue = {name: cd.Tensor.from_numpy(array, queue) for name, array in arrays.items()}
    try:
        for _ in range(2):
            np.testing.assert_array_equal(call(problem, arrays), expected)
            np.testing.assert_array_equal(call(problem, on_queue).numpy(), expected)
    finally:
        dispatch.forget()
    assert seen == [Recording]


def test_a_launch_that_fails_after_another_leaves_no_sum_to_the_next_solver(device, queue, monkeypatch):
    """Where the kernels add to the result, another solver would add to what is half written."""
    problem = ConvProblem.parse("mb2ic16ih14oc16kh3ph1+accumulate")
    ((arrays, _),) = turns(problem, 1)
    out, real, found = arrays.pop("initial"), host._enqueue, 0
    for name in solvers(problem, device):
        with cd.policy(solver=name):
            prepared = dispatch.prepare(problem, runtime.context(device))
            launches = len(prepared.executable(queue).launches)
            if launches < 2 or not prepared.begun(1, None, None):
                continue
            count, found = itertools.count(1), found + 1

            def fails(*arguments, count=count, last=launches):
                if next(count) == last:
                    raise cl.LogicError("the driver has no more words")
                return real(*arguments)

            monkeypatch.setattr(host, "_enqueue", fails)
            with (
                pytest.warns(ConvDispatchWarning, match="is set aside"),
                pytest.raises(cd.PlanFailed, match="what the result holds is undefined"),
            ):
                call(problem, arrays, out.copy(), queue=queue)
            monkeypatch.setattr(host, "_enqueue", real)
            set_aside.forgive()
            dispatch.forget()
    assert found


def test_torch_takes_the_same_launches(given, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct
    from convdispatch.torch.dispatch import native

    monkeypatch.setattr(native, "learn", lambda *_, **__: None)  # the native path gives launches of its own
    native.forget()

    x, layer = torch.randn(2, 12, 6, 6), torch.nn.Conv2d(12, 8, 3, padding=1)
    expected = torch.nn.functional.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)
    with ct.enable():
        for constant in (False, True):
            layer.requires_grad_(not constant)
            given.clear()
            for _ in range(3):
                assert (layer(x) - expected).norm() <= 1e-5 * expected.norm()
            assert given == [True] * 3
            gaps = x.repeat_interleave(2, -1)[..., ::2]
            assert (layer(gaps) - expected).norm() <= 1e-5 * expected.norm()
            assert (layer(x.neg().neg()) - expected).norm() <= 1e-5 * expected.norm()
    with torch.no_grad():
        for turn in range(3):
            found = cd.conv(x, cd.constant(layer.weight), layer.bias, padding=1)
            assert (found - expected).norm() <= 1e-5 * expected.norm(), turn


def test_what_gives_other_commands_goes_by_its_plan(monkeypatch, given):
    """A plan that copies, or one that cannot be recorded, runs as it did."""
    problem = ConvProblem.parse("mb1ic24ih1iw1oc72kh1kw1")
    ((arrays, expected),) = turns(problem, 1)
    opaque = classmethod(lambda cls, recording, *rest: cls(None, *rest))
    monkeypatch.setattr(Executable, "of", opaque)
    general = []
    monkeypatch.setattr(HostCall, "generally", lambda *_: general.append(1))
    dispatch.forget()
    try:
        for w in (arrays["w"], cd.constant(arrays["w"])):
            for _ in range(3):
                np.testing.assert_array_equal(call(problem, {**arrays, "w": w}), expected)
    finally:
        dispatch.forget()
    assert not given
    assert not general
