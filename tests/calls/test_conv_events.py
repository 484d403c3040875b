"""What a call reads is written first: every operand behind a user event, on in-order and out-of-order queues, of one
queue and of two. Nothing may have been read while the gate was shut, and no call may wait for it."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

from convdispatch import ConvProblem, Tensor, constant, conv, conv_backward_weights, policy, runtime
from convdispatch.measurement import reference

CHAOTIC = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
PROBLEM = ConvProblem.parse("fwd_f32_mb2ic6ih9iw8oc10kh3ph1")
EXTRA = {"bias": (10,), "residual": PROBLEM.y_shape}
SHAPES = {"x": PROBLEM.x_shape, "w": PROBLEM.w_shape, **EXTRA}


@pytest.fixture(params=["in-order", "out-of-order"])
def worker(request, device):
    """A queue of either kind."""
    if request.param == "out-of-order" and not device.queue_on_host_properties & CHAOTIC:
        pytest.skip("the device has no out-of-order queues")
    return cl.CommandQueue(runtime.context(device), properties=CHAOTIC if request.param == "out-of-order" else 0)


def numbers(*names: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    return {name: random.integers(-4, 5, SHAPES[name]).astype(np.float32) for name in names}


def placed(queue, shape, offset: int) -> cl.array.Array:
    """An array of zeros that begins ``offset`` bytes into its memory."""
    whole = cl.array.zeros(queue, (int(np.prod(shape)) + offset // 4 + 64,), np.float32)
    queue.finish()
    return cl.array.Array(queue, shape, np.float32, data=whole.base_data, offset=offset)


class Gate:
    """Delivers values to arrays on a queue of its own once it opens."""

    def __init__(self, context) -> None:
        self.context, self.event, self.carrier = context, cl.UserEvent(context), cl.CommandQueue(context)
        self.kept = []

    def deliver(self, array: cl.array.Array, values: np.ndarray) -> None:
        """``array.events`` tells when its values are there."""
        staged = cl.Buffer(self.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=values)
        self.kept += [staged, array]
        event = cl.enqueue_copy(self.carrier, array.base_data, staged, byte_count=values.nbytes,
                                dst_offset=array.offset, wait_for=[self.event])  # fmt: skip
        self.carrier.flush()
        array.events[:] = [event]

    def open(self) -> None:
        if self.event.command_execution_status != cl.command_execution_status.COMPLETE:
            self.event.set_status(cl.command_execution_status.COMPLETE)


@pytest.fixture
def gate(device):
    found = Gate(runtime.context(device))
    yield found
    found.open()


def behind(gate: Gate, call) -> object:
    """``call()`` while the gate is shut: it must come back; then the gate opens."""
    done = []
    thread = threading.Thread(target=lambda: done.append(call()), daemon=True)
    thread.start()
    thread.join(120)
    waited = thread.is_alive()
    time.sleep(0.05)  # what did not wait has run by now
    gate.open()
    thread.join(120)
    assert not waited, "the call waited for an event on the host"
    return done[0]


UNALIGNED = 4
CASES = ["x", "w", "bias", "residual", "constant w", "packed w"]


@pytest.mark.parametrize("offset", [0, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("late", CASES)
def test_an_operand_behind_an_event(worker, gate, solver, late, offset):
    name = late.split()[-1]
    given = numbers("x", "w", "bias", "residual")
    expected = reference.compute(PROBLEM.replace(bias=True, residual=True), **given)
    arrays = {key: cl.array.to_device(worker, values) for key, values in given.items()}
    worker.finish()
    arrays[name] = placed(worker, SHAPES[name], offset)
    gate.deliver(arrays[name], given[name])
    if late != name:
        arrays["w"] = constant(arrays["w"])
    pinned = policy(solver="implicitgemm.direct") if late == "packed w" else contextlib.nullcontext()
    with pinned:
        conv(
            **{
                key: cl.array.to_device(worker, values) if key != "w" else constant(cl.array.to_device(worker, values))
                for key, values in given.items()
            },
            padding=1,
        )  # compiled
        got = behind(gate, lambda: conv(**arrays, padding=1))
    np.testing.assert_array_equal(got.get(), expected)


@pytest.mark.parametrize("offset", [0, UNALIGNED], ids=["aligned", "unaligned"])
def test_an_output_that_is_still_written(worker, gate, offset):
    """``accumulate`` reads what the output holds, once it is there."""
    given = numbers("x", "w")
    initial = np.random.default_rng(2).integers(-4, 5, PROBLEM.y_shape).astype(np.float32)
    expected = initial + reference.compute(PROBLEM, **given)
    arrays = {key: cl.array.to_device(worker, values) for key, values in given.items()}
    out = placed(worker, PROBLEM.y_shape, offset)
    gate.deliver(out, initial)
    got = behind(gate, lambda: conv(**arrays, padding=1, out=out, accumulate=True))
    np.testing.assert_array_equal(got.get(), expected)


def test_an_output_that_is_still_read(worker, gate):
    """An output's pending event may be of a command that reads it."""
    given = numbers("x", "w")
    arrays = {key: cl.array.to_device(worker, values) for key, values in given.items()}
    out = placed(worker, PROBLEM.y_shape, UNALIGNED)
    out.fill(np.float32(7))
    worker.finish()
    aside = cl.array.empty(worker, PROBLEM.y_shape, np.float32)
    reading = cl.enqueue_copy(gate.carrier, aside.base_data, out.base_data, byte_count=out.nbytes,
                              src_offset=UNALIGNED, wait_for=[gate.event])  # fmt: skip
    gate.carrier.flush()
    out.events[:] = [reading]
    got = behind(gate, lambda: conv(**arrays, padding=1, out=out))
    np.testing.assert_array_equal(got.get(), reference.compute(PROBLEM, **given))
    assert (aside.get() == 7).all()


@pytest.mark.parametrize("pin", ["im2col", "implicitgemm.direct", "*"])
def test_a_residual_in_the_outputs_place(worker, gate, pin):
    given = numbers("x", "w", "residual")
    expected = reference.compute(PROBLEM.replace(residual=True), **given)
    arrays = {key: cl.array.to_device(worker, given[key]) for key in ("x", "w")}
    out = placed(worker, PROBLEM.y_shape, UNALIGNED)
    gate.deliver(out, given["residual"])
    with policy(solver=pin):
        got = behind(gate, lambda: conv(**arrays, residual=out, padding=1, out=out))
    np.testing.assert_array_equal(got.get(), expected)


class TestTwoQueues:
    """Tensors, and arrays without events, of another queue than the call's: their queue's work comes first."""

    @staticmethod
    def made(kind, queue, values):
        return Tensor.from_numpy(values, queue) if kind == "tensor" else cl.array.to_device(queue, values)

    @pytest.mark.parametrize("named", [False, True], ids=["its own", "queue="])
    @pytest.mark.parametrize("kind", ["tensor", "array"])
    @pytest.mark.parametrize("late", ["x", "w", "bias", "residual", "out", "constant w"])
    def test_an_operand(self, device, gate, kind, named, late):
        context = runtime.context(device)
        one, other = cl.CommandQueue(context), cl.CommandQueue(context)
        name = late.split()[-1]
        if not named and name == "x":
            pytest.skip("x says which queue the call is on")
        given = numbers("x", "w", "bias", "residual")
        initial = np.full(PROBLEM.y_shape, 3, np.float32)
        expected = reference.compute(PROBLEM.replace(bias=True, residual=True), **given)
        options = {}
        if late == "out":
            given["out"], options, expected = initial, {"accumulate": True}, expected + initial
        conv(
            given["x"], given["w"], given["bias"], residual=given["residual"], padding=1, out=initial.copy(), **options
        )
        arrays = {
            key: self.made(kind, *((other, 0 * values) if key == name else (one, values)))
            for key, values in given.items()
        }
        one.finish()
        other.finish()
        staged = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=given[name])
        cl.enqueue_barrier(other, wait_for=[gate.event])
        late_array = arrays[name]
        cl.enqueue_copy(other, late_array.base_data, staged, byte_count=given[name].nbytes)
        if late == "constant w":
            arrays["w"] = constant(late_array)
        options |= {"queue": one} if named else {}
        got = behind(gate, lambda: conv(**arrays, padding=1, **options))
        one.finish()
        np.testing.assert_array_equal(got.numpy() if kind == "tensor" else got.get(one), expected)

    @pytest.mark.parametrize("kind", ["tensor", "array"])
    def test_what_follows_on_the_other_queue_waits(self, device, gate, kind):
        """Its next work may overwrite the operand, or read the result."""
        context = runtime.context(device)
        one, other = cl.CommandQueue(context), cl.CommandQueue(context)
        given = numbers("x", "w")
        x, w = self.made(kind, other, given["x"]), self.made(kind, one, given["w"])
        out = self.made(kind, other, np.zeros(PROBLEM.y_shape, np.float32))
        conv(given["x"], given["w"], padding=1)
        cl.enqueue_barrier(one, wait_for=[gate.event])
        behind_all = []

        def call():
            conv(x, w, padding=1, out=out, queue=one)
            cl.enqueue_fill_buffer(other, x.base_data, np.float32(99), 0, given["x"].nbytes)
            host = np.empty(PROBLEM.y_shape, np.float32)
            behind_all.append((host, cl.enqueue_copy(other, host, out.base_data, is_blocking=False)))

        behind(gate, call)
        host, event = behind_all[0]
        event.wait()
        np.testing.assert_array_equal(host, reference.compute(PROBLEM, **given))


def test_numpy_on_an_out_of_order_queue(device, gate):
    """The result is read back after the convolution, not beside it."""
    if not device.queue_on_host_properties & CHAOTIC:
        pytest.skip("the device has no out-of-order queues")
    queue = cl.CommandQueue(runtime.context(device), properties=CHAOTIC)
    big = ConvProblem.parse("fwd_f32_mb4ic32ih40iw40oc32kh3ph1")
    random = np.random.default_rng(4)
    x, w = (random.integers(-2, 3, shape).astype(np.float32) for shape in (big.x_shape, big.w_shape))
    expected = reference.compute(big, x=x, w=w)
    for _ in range(3):
        np.testing.assert_allclose(conv(x, w, padding=1, queue=queue), expected, atol=0.01)


@pytest.mark.parametrize("offset", [0, UNALIGNED], ids=["aligned", "unaligned"])
def test_the_gradient_of_no_images(worker, gate, offset):
    """It is zero, after whatever the output still waits for."""
    x = cl.array.empty(worker, (0, 6, 9, 8), np.float32)
    dy = cl.array.empty(worker, (0, 10, 9, 8), np.float32)
    out = placed(worker, SHAPES["w"], offset)
    gate.deliver(out, np.ones(SHAPES["w"], np.float32))
    behind(gate, lambda: conv_backward_weights(x, dy, SHAPES["w"], padding=1, out=out))
    assert not out.get().any()
