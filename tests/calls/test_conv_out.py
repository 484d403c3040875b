"""What ``out`` may share memory with: nothing that is still read, and no two of its elements one place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checking import call, make_operands
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import convdispatch as cd
from convdispatch import ConvProblem, InvalidArgument
from convdispatch.api.problem import DIRECTIONS
from convdispatch.calls.arrays.operands import elements_overlap

PROBLEM = ConvProblem.parse("mb2ic4ih6oc4kh3ph1")


def stretched(shape, axis):
    """A writeable view of that shape with stride 0 along an axis."""
    held = np.zeros([1 if at == axis else size for at, size in enumerate(shape)], np.float32)
    return as_strided(held, shape, [0 if at == axis else step for at, step in enumerate(held.strides)])


OVERLAPPING = {
    **{f"stride 0 along axis {axis}": lambda shape, axis=axis: stretched(shape, axis) for axis in range(4)},
    "windows": lambda shape: sliding_window_view(
        np.zeros((*shape[:3], 2 * shape[3] - 1), np.float32)[:, :, 0], shape[3], axis=-1, writeable=True
    )[..., : shape[2], :],
    "backwards": lambda shape: stretched(shape, 1)[:, :, ::-1, ::-1],
    "half an element apart": lambda shape: as_strided(
        np.zeros(4096, np.float32), shape, (1024, 256, 32, 2)
    ),
    "rows that begin within the row before": lambda shape: as_strided(
        np.zeros(4096, np.float32), shape, (2048, 512, 4 * (shape[3] - 1), 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OVERLAPPING)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_elements_that_share_memory_are_refused(direction, kind):
    problem = PROBLEM.replace(direction=direction)
    operands, expected = make_operands(problem)
    arrays, out = operands.present(), OVERLAPPING[kind](problem.out_shape)
    assert out.shape == problem.out_shape
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="memory for each of its elements"):
            call(problem, arrays, out=out)
        assert not out.any()
        apart = np.zeros(problem.out_shape, np.float32)  # then the call is known, and takes its fast path
        call(problem, arrays, out=apart)
        np.testing.assert_array_equal(apart, expected)


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_elements_of_a_tensor_of_torch_that_share_memory_are_refused(kind):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    operands, expected = make_operands(PROBLEM)
    x, w = map(torch.from_numpy, (operands.x, operands.w))
    view = OVERLAPPING[kind](PROBLEM.y_shape)
    if any(step < 0 or step % 4 for step in view.strides):
        pytest.skip("PyTorch has no such strides")
    out = torch.zeros(4096).as_strided(PROBLEM.y_shape, [step // 4 for step in view.strides])
    apart = torch.zeros(PROBLEM.y_shape)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="memory for each of its elements"):
            cd.conv(x, w, padding=1, out=out)
        assert not out.any()
        np.testing.assert_array_equal(cd.conv(x, w, padding=1, out=apart).numpy(), expected)


def test_other_doors_refuse_it_too():
    operands, _ = make_operands(PROBLEM)
    out = stretched(PROBLEM.y_shape, 0)
    with pytest.raises(InvalidArgument, match="memory for each"):
        cd.conv(operands.x, operands.w, padding=1, out=out, accumulate=True)
    with pytest.raises(InvalidArgument, match="memory for each"):
        cd.conv_transpose(operands.x, operands.w, padding=1, out=out)
    x, w = np.ones((2, 4, 6, 6), np.uint8), np.ones((4, 4, 3, 3), np.int8)
    integers = as_strided(np.zeros((4, 6, 6), np.int32), (2, 4, 6, 6), (0, 144, 24, 4))
    with pytest.raises(InvalidArgument, match="memory for each"):
        cd.conv(x, w, padding=1, out=integers, quantization=cd.Quantization())
    integers = np.zeros((2, 4, 6, 6), np.int32)
    integers.flags.writeable = False
    with pytest.raises(InvalidArgument, match="writeable"):
        cd.conv(x, w, padding=1, out=integers, quantization=cd.Quantization())


def test_views_whose_elements_lie_apart_are_written():
    operands, expected = make_operands(PROBLEM)
    shape = PROBLEM.y_shape
    held = np.zeros((2, 4, 6, 24), np.float32)
    for out in (
        held[..., ::4],
        held[..., :6].swapaxes(2, 3),
        held[::-1, ::-1, ::-1, 5::-1],
        # Rows 7 elements apart and columns 10: no nesting of strides shows that no two elements meet.
        as_strided(np.zeros(4096, np.float32), shape, (4 * 512, 4 * 128, 4 * 7, 4 * 10)),
    ):
        cd.conv(operands.x, operands.w, padding=1, out=out)
        np.testing.assert_array_equal(out, expected)


def test_an_expanded_operand_is_read():
    operands, _ = make_operands(PROBLEM)
    one = np.float32(3)
    x, w = np.broadcast_to(operands.x[:1], operands.x.shape), np.broadcast_to(operands.w[:1], operands.w.shape)
    residual, bias = np.broadcast_to(one, PROBLEM.y_shape), np.broadcast_to(one, 4)
    got = cd.conv(x, w, bias, padding=1, residual=residual)
    np.testing.assert_array_equal(got, cd.conv(x.copy(), w.copy(), padding=1) + 6)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2, 2)])
def test_whether_elements_overlap_is_exact(shape):
    steps = (0, 1, 2, 3, 4, 5, 6, 7, 12, -4)
    for strides in itertools.product(steps, repeat=len(shape)):
        for itemsize in (1, 4):
            places = [sum(map(int.__mul__, strides, at)) for at in np.ndindex(shape)]
            met = [place + byte for place in places for byte in range(itemsize)]
            assert elements_overlap(shape, strides, itemsize) == (len(set(met)) < len(met)), (strides, itemsize)
    assert not elements_overlap((0, 5), (0, 0), 4)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("operand", ["x", "w", "bias", "residual"])
def test_numpy_out_over_an_operand_holds_what_the_operands_said_before(operand, layout):
    """Also where only a part is shared, and the operand begins before or after."""
    problem = PROBLEM.replace(layout=layout, bias=True, residual=True, activation="relu")
    operands, expected = make_operands(problem)
    arrays = operands.present()
    size, length = arrays[operand].size, expected.size
    for shift in (0, 1, size // 2, -3):
        memory = np.zeros(size + length + 8, np.float32)
        begin = 4
        arrays |= {operand: memory[begin : begin + size].reshape(arrays[operand].shape)}
        arrays[operand][...] = getattr(operands, operand)
        out = memory[begin + shift : begin + shift + length].reshape(expected.shape)
        call(problem, arrays, out=out)
        np.testing.assert_array_equal(out, expected)


def test_quantized_out_over_the_weights():
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)
    held = np.random.default_rng(1).integers(-128, 128, (4, 4, 3, 3)).astype(np.int8)
    expected = cd.conv(x, held.copy(), padding=1, quantization=cd.Quantization(dtype="int8"))
    memory = np.zeros(400, np.int8)
    w = memory[100:244].reshape(held.shape)
    w[...] = held
    out = memory[60:204].reshape(expected.shape)
    cd.conv(x, w, padding=1, out=out, quantization=cd.Quantization(dtype="int8"))
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("begin", "shift"), [(64, -64), (64, 64), (0, 0), (4096, 0)])
def test_a_device_out_over_the_residual_or_a_part_of_it(queue, naive, begin, shift):
    """The residual's values are those before the call, whether its own kernel adds them or a later one, which comes
    when the convolution has written over them."""
    cl_array = pytest.importorskip("pyopencl.array")
    problem = ConvProblem.parse("mb2ic4ih6oc4kh3ph1+residual+relu")
    operands, expected = make_operands(problem)
    x, w = (cl_array.to_device(queue, array) for array in (operands.x, operands.w))
    size = expected.size
    for solver in (None, "naive.direct"):
        memory = cl_array.zeros(queue, begin + size + max(shift, 0), np.float32)
        out = memory[begin + shift : begin + shift + size].reshape(expected.shape)
        residual = memory[begin : begin + size].reshape(expected.shape) if shift else out
        residual.set(operands.residual)
        with cd.policy(solver=solver):
            cd.conv(x, w, padding=1, residual=residual, activation="relu", out=out)
        np.testing.assert_array_equal(out.get(), expected)


def test_a_device_out_over_the_bias_is_refused(queue):
    cl_array = pytest.importorskip("pyopencl.array")
    operands, _ = make_operands(PROBLEM)
    x, w = (cl_array.to_device(queue, array) for array in (operands.x, operands.w))
    memory = cl_array.zeros(queue, PROBLEM.mb * 144 + 64, np.float32)
    out = memory[: PROBLEM.mb * 144].reshape(PROBLEM.y_shape)
    with pytest.raises(InvalidArgument, match="out shares memory with bias"):
        cd.conv(x, w, memory[64:68], padding=1, out=out)
    cd.conv(x, w, memory[PROBLEM.mb * 144 :][:4], padding=1, out=out)
