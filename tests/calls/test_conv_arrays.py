"""What may be passed in: NumPy of any stride and byte order, device arrays with offsets, aliases; what comes out."""

from __future__ import annotations

import numpy as np
import pytest
from checking import Guarded, call, check, make_operands

import convdispatch
from bench.place import options_of
from convdispatch import ConvProblem, InvalidArgument
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import reference

cl = pytest.importorskip("pyopencl")
import pyopencl.array as cl_array  # noqa: E402

PROBLEM = ConvProblem.parse("mb2ic5ih7iw6oc9kh3kw2sh2sw1ph1pw1")


@pytest.fixture(params=DIRECTIONS)
def case(request):
    """(problem, operands by name, expected) in each direction, integer data."""
    problem = PROBLEM.replace(direction=request.param)
    operands, expected = make_operands(problem)
    return problem, operands.present(), expected


def upload(queue, arrays):
    return {name: cl_array.to_device(queue, array) for name, array in arrays.items()}


# --- NumPy ------------------------------------------------------------------------------------------------------------

ODD_NUMPY = {
    "fortran": np.asfortranarray,
    "big_endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "every_second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "read_only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("kind", ODD_NUMPY)
def test_numpy_input_of_any_kind(case, kind):
    problem, arrays, expected = case
    odd = {name: ODD_NUMPY[kind](array) for name, array in arrays.items()}
    got = call(problem, odd)
    assert got.dtype == np.float32
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, expected)
    for name, array in odd.items():
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize("kind", ["fortran", "big_endian", "every_second", "reversed"])
def test_numpy_out_of_any_kind(case, kind):
    problem, arrays, expected = case
    out = ODD_NUMPY[kind](np.full(problem.out_shape, np.nan, np.float32))
    assert call(problem, arrays, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_numpy_out_may_be_a_slice_of_a_larger_array(case):
    problem, arrays, expected = case
    whole = np.full((2, *problem.out_shape), 7, np.float32)
    call(problem, arrays, out=whole[1])
    np.testing.assert_array_equal(whole[1], expected)
    assert (whole[0] == 7).all()


@pytest.mark.parametrize(
    "make", [cl_array.to_device, lambda queue, array: convdispatch.Tensor.from_numpy(array, queue)]
)
def test_a_device_result_over_an_operand_is_refused(queue, make):
    memory, w = make(queue, np.ones((4, 2, 8, 8), np.float32)), make(queue, np.ones((2, 2, 1, 1), np.float32))
    for x, out in ((memory[:2], memory[:2]), (memory[:2], memory[1:3]), (memory[1:3], memory[:2])):
        with pytest.raises(InvalidArgument, match="out shares memory with x, which would change while it is read"):
            convdispatch.conv(x, w, out=out)
        with pytest.raises(InvalidArgument, match="out shares memory with dy"):
            convdispatch.conv_backward_data(x, w, (2, 2, 8, 8), out=out)
    np.testing.assert_array_equal(memory.get() if hasattr(memory, "get") else memory.numpy(), 1)
    convdispatch.conv(memory[:2], w, out=memory[2:])
    np.testing.assert_array_equal((memory.get() if hasattr(memory, "get") else memory.numpy())[2:], 2)


def test_constant_weights_of_any_kind():
    operands, expected = make_operands(PROBLEM)
    for kind, change in ODD_NUMPY.items():
        kept = convdispatch.constant(change(operands.w))
        np.testing.assert_array_equal(call(PROBLEM, {"x": operands.x, "w": kept}), expected, err_msg=kind)


# --- device arrays ----------------------------------------------------------------------------------------------------


def test_device_arrays_stay_on_their_queue(case, queue):
    problem, arrays, expected = case
    got = call(problem, upload(queue, arrays))
    assert type(got) is cl_array.Array
    assert got.queue == queue
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.get(), expected)


def test_the_call_does_not_wait(queue, device):
    """Work that is held back by an event cannot have finished when the call returns."""
    operands, expected = make_operands(PROBLEM)
    arrays = upload(queue, operands.present())
    call(PROBLEM, arrays).get()  # compiled before
    gate = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue, wait_for=[gate])
    got = call(PROBLEM, arrays)
    done = cl.enqueue_marker(queue)
    queue.flush()
    assert done.command_execution_status != cl.command_execution_status.COMPLETE
    gate.set_status(cl.command_execution_status.COMPLETE)
    np.testing.assert_array_equal(got.get(), expected)


@pytest.mark.parametrize("offset", [1, 3, 32, 1024])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_arrays_that_start_inside_their_buffer(device, direction, offset):
    """Aligned offsets become sub-buffers, others copies; guard zones on both sides stay."""
    check(PROBLEM.replace(direction=direction), device, offset=offset)
    check(PROBLEM.replace(direction=direction, accumulate=True), device, offset=offset)


def test_bias_and_residual_with_offsets(device):
    check(PROBLEM.replace(bias=True, residual=True, activation="relu"), device, offset=3)
    check(PROBLEM.replace(bias=True, residual=True, activation="relu", direction="bwd_data"), device, offset=32)


def test_a_contiguous_view_is_taken(queue):
    """One image of a batch, and axes of size 1 with any stride."""
    operands, expected = make_operands(PROBLEM)
    arrays = upload(queue, operands.present())
    one = PROBLEM.replace(mb=1)
    got = call(one, {"x": arrays["x"][1:2], "w": arrays["w"]})
    np.testing.assert_array_equal(got.get(), expected[1:2])


def test_a_strided_device_array_is_refused(queue):
    operands, _ = make_operands(PROBLEM)
    wide = np.full((*PROBLEM.x_shape[:-1], 2 * PROBLEM.iw), 9, np.float32)
    wide[..., ::2] = operands.x
    x = cl_array.to_device(queue, wide)[..., ::2]
    w = cl_array.to_device(queue, operands.w)
    out = Guarded(np.full(PROBLEM.out_shape, np.nan, np.float32), queue)
    with pytest.raises(InvalidArgument, match="must be contiguous"):
        call(PROBLEM, {"x": x, "w": w}, out.array)
    assert out.damage(payload_too=True) is None


def test_a_strided_device_out_is_refused(queue):
    operands, _ = make_operands(PROBLEM)
    out = cl_array.zeros(queue, (*PROBLEM.y_shape[:-1], 2 * PROBLEM.ow), np.float32)
    with pytest.raises(InvalidArgument, match="out must be contiguous"):
        call(PROBLEM, upload(queue, operands.present()), out[..., ::2])
    assert not out.get().any()


def test_an_array_without_a_queue_needs_one(queue):
    operands, expected = make_operands(PROBLEM)
    arrays = {name: array.with_queue(None) for name, array in upload(queue, operands.present()).items()}
    queue.finish()
    with pytest.raises(InvalidArgument, match="queue"):
        call(PROBLEM, arrays)
    np.testing.assert_array_equal(call(PROBLEM, arrays, queue=queue).get(queue), expected)


def test_another_queue_of_the_context_waits_for_the_arrays_events(queue, device):
    """x is still being written on its own queue when a second queue is told to convolve it."""
    operands, expected = make_operands(PROBLEM)
    arrays = upload(queue, operands.present())
    call(PROBLEM, arrays).get()
    gate = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue, wait_for=[gate])
    late = cl_array.empty(queue, PROBLEM.x_shape, np.float32)
    late.add_event(cl.enqueue_copy(queue, late.base_data, arrays["x"].base_data))
    second = cl.CommandQueue(queue.context)
    got = call(PROBLEM, {"x": late, "w": arrays["w"]}, queue=second)
    queue.flush(), second.flush()
    gate.set_status(cl.command_execution_status.COMPLETE)
    np.testing.assert_array_equal(got.get(second), expected)


def test_an_out_of_order_queue_keeps_the_order(device, queue):
    """Two dependent calls, joined by the arrays' events alone."""
    kind = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    loose = cl.CommandQueue(queue.context, properties=kind)
    problem = ConvProblem.parse("mb2ic6ih9oc6kh3ph1+bias+relu")
    operands, once = make_operands(problem)
    arrays = {name: cl_array.to_device(loose, array) for name, array in operands.present().items()}
    for array in arrays.values():
        array.finish()
    for _ in range(5):
        got = arrays["x"]
        for _ in range(2):
            got = call(problem, arrays | {"x": got})
        expected = reference.compute(problem, x=once, w=operands.w, bias=operands.bias)
        got.finish()
        loose.finish()
        np.testing.assert_array_equal(got.get(), expected)


def test_many_calls_in_flight_do_not_share_scratch_memory(queue):
    """Fifty calls enqueued at once, each with a result of its own."""
    problem = ConvProblem.parse("mb2ic6ih9oc8kh3ph1+bias")
    cases = [make_operands(problem, seed=seed) for seed in range(10)]
    loaded = [upload(queue, operands.present()) for operands, _ in cases]
    results = [call(problem, loaded[turn % 10]) for turn in range(50)]
    for turn, result in enumerate(results):
        np.testing.assert_array_equal(result.get(), cases[turn % 10][1])


def test_constant_device_weights(queue):
    operands, expected = make_operands(PROBLEM)
    arrays = upload(queue, operands.present())
    kept = convdispatch.constant(arrays["w"])
    for _ in range(2):
        np.testing.assert_array_equal(call(PROBLEM, {"x": arrays["x"], "w": kept}).get(), expected)
    on_host = convdispatch.constant(operands.w)
    np.testing.assert_array_equal(call(PROBLEM, {"x": arrays["x"], "w": on_host}).get(), expected)


def test_device_and_host_agree_to_the_bit(case, queue):
    problem, _, _ = case
    operands, _ = make_operands(problem, "real")
    host = call(problem, operands.present())
    np.testing.assert_array_equal(call(problem, upload(queue, operands.present())).get(), host)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_an_empty_batch_on_the_device(queue, layout):
    problem = ConvProblem.parse("mb0ic3ih8oc4kh3ph1").replace(layout=layout)
    w = cl_array.zeros(queue, problem.w_shape, np.float32)
    x = cl_array.Array(queue, problem.x_shape, np.float32)
    assert convdispatch.conv(x, w, **options_of(problem)).shape == problem.y_shape
    dy = cl_array.Array(queue, problem.y_shape, np.float32)
    grad = convdispatch.conv_backward_weights(x, dy, problem.w_shape, **options_of(problem))
    assert not grad.get().any()


@pytest.mark.parametrize("name", ["x", "w", "bias", "residual"])
def test_one_operand_in_the_other_byte_order_is_read_as_what_it_is(name):
    problem = ConvProblem.parse("mb1ic4ih5oc6kh3ph1+bias+residual")
    operands, expected = make_operands(problem)
    arrays = operands.present()
    arrays[name] = arrays[name].astype(arrays[name].dtype.newbyteorder(">"))
    for _ in range(3):
        np.testing.assert_array_equal(call(problem, arrays), expected)
