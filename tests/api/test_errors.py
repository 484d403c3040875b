"""Bad input: one clear error of the package's own kind, in the caller's terms, and nothing written to ``out``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import convdispatch
from convdispatch import ConvDispatchError, InvalidArgument, InvalidProblem
from convdispatch.selection.choice import lockfile

F32 = np.float32


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


def x(**changes):
    return ones(2, 4, 8, 8, **changes)


def w(**changes):
    return ones(6, 4, 3, 3, **changes)


# what is passed beside or instead of x and w -> words of the message
BAD = {
    "x_rank_2": ({"x": ones(4, 8)}, "x must have 3, 4 or 5 axes"),
    "x_rank_6": ({"x": ones(1, 4, 2, 2, 2, 2)}, "x must have 3, 4 or 5 axes"),
    "x_scalar": ({"x": np.float32(1)}, "x must"),
    "x_list": ({"x": [[[1.0]]]}, "x must be a NumPy array.*got list"),
    "x_none": ({"x": None}, "x must be a NumPy array.*got NoneType"),
    "w_none": ({"w": None}, "w must be a NumPy array.*got NoneType"),
    "w_rank": ({"w": ones(6, 4, 3)}, "w must have as many axes as x"),
    "w_channels": ({"w": ones(6, 3, 3, 3)}, "takes 3 channels a group, but x .* has 4"),
    "groups_of_x": ({"groups": 3}, "multiple of groups, but 4 is not a multiple of 3"),
    "groups_of_w": ({"groups": 2, "w": ones(5, 2, 3, 3)}, "oc=5 is not a multiple of g=2"),
    "groups_0": ({"groups": 0}, "groups must be 1 or more, got 0"),
    "groups_text": ({"groups": "2"}, "groups must be an integer, got '2'"),
    "no_channels": ({"x": ones(2, 0, 8, 8), "w": ones(6, 0, 3, 3)}, "channels must be 1 or more"),
    "no_outputs": ({"w": ones(0, 4, 3, 3)}, "output channels must be 1 or more"),
    "no_kernel": ({"w": ones(6, 4, 0, 3)}, "kernel size must be 1 or more"),
    "no_pixels": ({"x": ones(2, 4, 0, 8), "padding": 2}, "input size must be 1 or more"),
    "stride_0": ({"stride": 0}, "stride must be 1 or more, got 0"),
    "stride_negative": ({"stride": (1, -2)}, "stride must be 1 or more, got -2"),
    "stride_float": ({"stride": 1.5}, "stride must be an integer or one an axis, got 1.5"),
    "stride_text": ({"stride": "2"}, "stride must"),
    "stride_three": ({"stride": (1, 1, 1)}, r"stride must be an integer or 2 of them for 2-D data"),
    "dilation_0": ({"dilation": (0, 1)}, "dilation must be 1 or more, got 0"),
    "dilation_none": ({"dilation": None}, "dilation must be an integer"),
    "padding_negative": ({"padding": -1}, "padding must be 0 or more, got -1"),
    "padding_far_negative": ({"padding": ((0, -1), 0)}, "padding must be 0 or more, got -1"),
    "padding_one_of_two": ({"padding": (1,)}, r"padding must be an integer or, for 2-D data"),
    "padding_flat_four": ({"padding": (1, 1, 1, 1)}, r"padding must be an integer or, for 2-D data"),
    "padding_triples": ({"padding": ((1, 1, 1), 0)}, "padding takes an integer or a .near, far. pair"),
    "padding_word": ({"padding": "full"}, "padding must be numbers, 'same' or 'valid', got 'full'"),
    "padding_same_strided": ({"padding": "same", "stride": 2}, "only with stride 1"),
    "padding_float": ({"padding": 0.5}, "padding must be numbers"),
    "padding_floats": ({"padding": (0.5, 1)}, "padding"),
    "kernel_too_large": ({"w": ones(6, 4, 11, 3), "padding": 1}, "along h it spans 11"),
    "dilated_too_large": ({"dilation": 5}, "along h it spans 11"),
    "layout": ({"layout": "chwn"}, "layout must be one of nchw, nhwc, got 'chwn'"),
    "layout_upper": ({"layout": "NHWC"}, "layout must be one of"),
    "layout_none": ({"layout": None}, "layout must be one of"),
    "math": ({"math": "exact"}, "math must be one of float32, ieee, tf32, fast, reproducible, got 'exact'"),
    "activation": ({"activation": "softmax"}, "activation must be None or one of relu"),
    "activation_number": ({"activation": 3}, "activation must be None or one of"),
    "activation_arguments": ({"activation": "relu(1)"}, "at most 0 numbers"),
    "w_dtype": ({"w": w(dtype=np.float64)}, "w must be float32 as x is, got float64"),
    "bias_dtype": ({"bias": ones(6, dtype=np.float16)}, "bias must be float32 as x is, got float16"),
    "residual_dtype": ({"residual": ones(2, 6, 6, 6, dtype=np.float64)}, "residual must be float32"),
    "x_int": ({"x": x(dtype=np.int32), "w": w(dtype=np.int32)}, "x must be of float32.*got int32"),
    "x_complex": ({"x": x(dtype=np.complex64)}, "x must be of float32"),
    "x_objects": ({"x": np.full((2, 4, 8, 8), None)}, "x must be of float32"),
    "bias_length": ({"bias": ones(4)}, r"bias must have shape \(6,\), got \(4,\)"),
    "bias_rank": ({"bias": ones(6, 1)}, r"bias must have shape \(6,\)"),
    "bias_list": ({"bias": [0.0] * 6}, "bias must be a NumPy array"),
    "residual_shape": ({"residual": ones(2, 6, 8, 8)}, r"residual must have the result's shape \(2, 6, 6, 6\)"),
    "accumulate_alone": ({"accumulate": True, "out": None}, "pass out="),
    "accumulate_activated": ({"accumulate": True, "activation": "relu"}, "accumulate"),
    "out_shape": ({"out": ones(2, 6, 8, 8)}, r"out must have shape \(2, 6, 6, 6\), got \(2, 6, 8, 8\)"),
    "out_dtype": ({"out": ones(2, 6, 6, 6, dtype=np.float64)}, "out must be float32"),
    "out_list": ({"out": [1.0]}, "out must be"),
    "options_as_an_array": ({"padding": np.array([1.5, 1])}, "padding"),
    "stride_as_an_array": ({"stride": np.array([[1, 1]])}, "stride"),
}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, warm):
    """Also when a good call with the same shapes has just been made and its plan is kept."""
    changes, message = BAD[name]
    arguments = {"x": x(), "w": w(), "out": np.full((2, 6, 6, 6), np.nan, F32)} | changes
    operands = [arguments.pop("x"), arguments.pop("w")]
    if warm:
        convdispatch.conv(x(), w(), ones(6), residual=ones(2, 6, 6, 6), activation="relu")
        convdispatch.conv(x(), w(), out=np.empty((2, 6, 6, 6), F32))
    out = arguments["out"]
    before = out.copy() if isinstance(out, np.ndarray) else None
    with pytest.raises(ConvDispatchError, match=message):
        convdispatch.conv(*operands, **arguments)
    if before is not None:
        np.testing.assert_array_equal(out, before)


def test_read_only_out():
    out = np.zeros((2, 6, 6, 6), F32)
    out.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        convdispatch.conv(x(), w(), out=out)
    writeable = np.zeros((2, 6, 6, 6), F32)
    convdispatch.conv(x(), w(), out=writeable)
    with pytest.raises(InvalidArgument, match="read-only"):  # also when the plan is kept
        convdispatch.conv(x(), w(), out=out)
    assert not out.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dy": ones(2, 6, 7, 7)}, r"dy must have shape \(2, 6, 6, 6\)"),
        ({"dy": ones(2, 5, 6, 6)}, "dy must have shape"),
        ({"dy": ones(2, 6, 36)}, "dy must have shape"),
        ({"dy": None}, "dy must be a NumPy array.*got NoneType"),
        ({"dy": ones(2, 6, 6, 6, dtype=np.float64)}, "w must be float64 as dy is|dy must be float32"),
        ({"x_shape": (2, 4, 8)}, "as many axes as x|x must have"),
        ({"x_shape": (2, 4, 8, 8.0)}, "tuple of integers"),
        ({"x_shape": (2, 4, -8, 8)}, "must be 1 or more"),
        ({"x_shape": (2, 5, 8, 8)}, "takes 4 channels a group"),
        ({"x_shape": 5}, "shape"),
        ({"out": ones(2, 4, 8, 9)}, "out must have shape"),
    ],
)
def test_backward_data(arguments, message):
    arguments = {"dy": ones(2, 6, 6, 6), "w": w(), "x_shape": (2, 4, 8, 8)} | arguments
    with pytest.raises(ConvDispatchError, match=message):
        convdispatch.conv_backward_data(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dy": ones(2, 6, 7, 7)}, r"dy must have shape \(2, 6, 6, 6\)"),
        ({"dy": ones(3, 6, 6, 6)}, "dy must have shape"),
        ({"dy": ones(2, 6, 6, 6, dtype=np.float64)}, "dy must be float32 as x is"),
        ({"w_shape": (6, 3, 3, 3)}, "takes 3 channels a group"),
        ({"w_shape": (6, 4, 3)}, "w must have as many axes"),
        ({"w_shape": None}, "shape"),
        ({"w_shape": (6, 4, 0, 3)}, "kernel size must be 1 or more"),
        ({"out": ones(6, 4, 3, 2)}, "out must have shape"),
        ({"x": None}, "x must be a NumPy array"),
    ],
)
def test_backward_weights(arguments, message):
    arguments = {"dy": ones(2, 6, 6, 6), "x": x(), "w_shape": (6, 4, 3, 3)} | arguments
    with pytest.raises(ConvDispatchError, match=message):
        convdispatch.conv_backward_weights(**arguments)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", ["w", "bias", "residual", "out"])
def test_numpy_and_device_arrays_do_not_mix(queue, name, warm):
    import pyopencl.array as cl_array

    host = {"x": x(), "w": w(), "bias": ones(6), "residual": ones(2, 6, 6, 6), "out": np.full((2, 6, 6, 6), 7, F32)}
    device = {key: cl_array.to_device(queue, array) for key, array in host.items()}
    if warm:
        convdispatch.conv(**host)
        convdispatch.conv(**device)
        host["out"][...] = 7
        device["out"].fill(7)
    for most, other in ((host, device), (device, host)):
        mixed = most | {name: other[name]}
        with pytest.raises(InvalidArgument, match="must be where x is"):
            convdispatch.conv(**mixed)
        for out in (host["out"], device["out"].get()):
            assert (out == 7).all()


@pytest.mark.parametrize("name", ["w", "bias", "residual", "out"])
def test_arrays_on_another_context(queue, device, name):
    import pyopencl as cl
    import pyopencl.array as cl_array

    elsewhere = cl.Context([device])
    stranger = cl.CommandQueue(elsewhere)
    arrays = {"x": x(), "w": w(), "bias": ones(6), "residual": ones(2, 6, 6, 6), "out": np.full((2, 6, 6, 6), 7, F32)}
    there = {key: cl_array.to_device(stranger if key == name else queue, array) for key, array in arrays.items()}
    with pytest.raises(InvalidArgument, match="context"):
        convdispatch.conv(**there)
    assert (there["out"].get() == 7).all()


def test_a_queue_of_another_context(queue, device):
    import pyopencl as cl
    import pyopencl.array as cl_array

    elsewhere = cl.Context([device])
    stranger = cl.CommandQueue(elsewhere)
    with pytest.raises(InvalidArgument, match="context"):
        convdispatch.conv(cl_array.to_device(queue, x()), cl_array.to_device(queue, w()), queue=stranger)


def test_a_queue_that_is_none():
    with pytest.raises(ConvDispatchError, match="queue"):
        convdispatch.conv(x(), w(), queue="fast")


def test_errors_are_one_family():
    for error in (InvalidArgument, InvalidProblem):
        assert issubclass(error, ConvDispatchError)
        assert issubclass(error, ValueError)


def test_a_message_of_what_a_file_holds_stays_readable(tmp_path):
    """A file of no end, as one that broke has, is not quoted to its end."""
    file = tmp_path / "broken.lock"
    file.write_text(json.dumps({"schema": 1, "problems": {"fwd_f32_mb1" + ": " * 30_000: {}}}))
    with pytest.raises(convdispatch.InvalidPolicy, match=r"broken\.lock.* characters are left out here\] ") as caught:
        lockfile.read(file)
    assert len(str(caught.value)) <= 5000
    assert str(convdispatch.NoDevice("few words")) == "few words"
