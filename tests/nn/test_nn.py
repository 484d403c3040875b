"""Layers against the reference and against each other's layouts; nets of them as containers of parameters."""

import numpy as np
import pytest
from checking import compare

from convdispatch.api.errors import InvalidArgument
from convdispatch.api.problem import ConvProblem
from convdispatch.calls.arguments import describe
from convdispatch.measurement import reference
from convdispatch.nn import Conv2d, Linear, Module, Sequential, functional
from convdispatch.tensor import Tensor

LAYOUTS = ("nchw", "nhwc")


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def supported(queue, dtype: str) -> None:
    if dtype == "float64" and not queue.device.double_fp_config:
        pytest.skip("the device has no float64")


# --- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(1, 5, 7, 7), (3, 4, 1, 1), (2, 33, 3, 5), (2, 3, 8), (1, 2, 3, 4, 5)])
def test_global_average_pool(queue, layout, dtype, shape):
    supported(queue, dtype)
    x = normal(*shape, dtype=dtype)
    expected = x.astype(np.float64).reshape(*shape[:2], -1).mean(-1)
    given = x if layout == "nchw" else np.moveaxis(x, 1, -1)
    got = functional.global_average_pool(Tensor.from_numpy(given, queue), layout).numpy()
    compare(got, expected, {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype])


def test_global_average_pool_of_views(queue):
    x = normal(4, 6, 5, 3)
    tensor = Tensor.from_numpy(x, queue)
    compare(functional.global_average_pool(tensor[1:3]).numpy(), x[1:3].mean((2, 3)), 1e-6)
    compare(functional.global_average_pool(tensor.transpose(1, 0, 2, 3)).numpy(), x.mean((2, 3)).T, 1e-6)
    compare(functional.global_average_pool(tensor.transpose(0, 2, 3, 1), "nhwc").numpy(), x.mean((2, 3)), 1e-6)


def test_global_average_pool_without_pixels(queue):
    assert functional.global_average_pool(Tensor.empty((0, 3, 4, 4), queue=queue)).shape == (0, 3)
    with pytest.raises(InvalidArgument, match="at least one pixel"):
        functional.global_average_pool(Tensor.empty((1, 3, 0, 4), queue=queue))


@pytest.mark.parametrize("bias", [False, True])
def test_folding_a_batch_norm_is_the_batch_norm(bias):
    w, x = normal(6, 3, 3, 3, dtype="float64"), normal(2, 3, 5, 5, dtype="float64", seed=1)
    scale, shift, mean, start = (normal(6, dtype="float64", seed=seed) for seed in range(2, 6))
    variance = normal(6, dtype="float64", seed=6) ** 2
    problem = ConvProblem(mb=2, ic=3, ih=5, iw=5, oc=6, kh=3, kw=3, dtype="float64")
    y = reference.compute(problem, x=x, w=w) + (start.reshape(-1, 1, 1) if bias else 0)
    along = (1, -1, 1, 1)
    expected = (y - mean.reshape(along)) * (scale / np.sqrt(variance + 1e-3)).reshape(along) + shift.reshape(along)
    factor, offset = functional.folding(scale, shift, mean, variance, 1e-3, start if bias else None)
    folded = w * factor.reshape(-1, 1, 1, 1)
    compare(reference.compute(problem.replace(bias=True), x=x, w=folded, bias=offset), expected, 1e-13)


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 1},
        {"kernel": 3, "padding": 1, "activation": "relu6"},
        {"kernel": (3, 2), "stride": (2, 1), "padding": ((0, 1), (1, 0)), "bias": False},
        {"kernel": 3, "padding": 1, "groups": 6, "activation": "relu"},
        {"kernel": 3, "padding": 2, "dilation": 2, "groups": 2, "residual": True},
    ],
    ids=str,
)
def test_conv2d(queue, layout, options):
    options = dict(options)
    residual = options.pop("residual", False)
    layer = Conv2d(6, 12, **options, layout=layout, queue=queue, rng=np.random.default_rng(0))
    x = normal(*((2, 6, 7, 8) if layout == "nchw" else (2, 7, 8, 6)))
    operands = {"bias": layer.bias is not None, "residual": residual}
    problem = describe("fwd", x.shape, layer.weight.shape, None, "float32", **operands, **layer.options)
    arrays = [x, normal(*problem.y_shape, seed=1)] if residual else [x]
    bias = None if layer.bias is None else layer.bias.numpy()
    added = arrays[1] if residual else None
    expected = reference.compute(problem, x=x, w=layer.weight.numpy(), bias=bias, residual=added)
    compare(layer(*(Tensor.from_numpy(array, queue) for array in arrays)).numpy(), expected, 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("turned", [False, True])
def test_linear(queue, layout, turned):
    layer = Linear(40, 10, activation="relu", layout=layout, queue=queue)
    x = normal(3, 40)
    w, bias = layer.weight.numpy().reshape(10, 40), layer.bias.numpy()
    given = Tensor.from_numpy(np.ascontiguousarray(x.T), queue).transpose() if turned else Tensor.from_numpy(x, queue)
    got = layer(given)
    assert got.shape == (3, 10)
    compare(got.numpy(), np.maximum(x.astype(np.float64) @ w.T + bias, 0), 1e-5)


def test_groups_must_divide_channels(queue):
    with pytest.raises(InvalidArgument, match="multiples of groups=4"):
        Conv2d(6, 12, 3, groups=4, queue=queue)


# --- nets ------------------------------------------------------------------------------------------------------------


class Net(Module):
    """Two convolutions in a list, a Sequential and a layer that is left out."""

    def __init__(self, queue) -> None:
        self.stages = [Conv2d(3, 4, 3, padding=1, queue=queue), Conv2d(4, 4, 3, padding=1, queue=queue)]
        self.tail = Sequential(functional.global_average_pool, Linear(4, 5, bias=False, queue=queue))
        self.skipped = None

    def __call__(self, x: Tensor) -> Tensor:
        x = self.stages[0](x)
        return self.tail(self.stages[1](x, residual=x))


PARAMETERS = ["stages.0.weight", "stages.0.bias", "stages.1.weight", "stages.1.bias", "tail.1.weight"]


def test_parameters_are_found_by_name(queue):
    net = Net(queue)
    assert [name for name, _ in net.named_parameters()] == PARAMETERS
    assert sum(p.size for p in net.parameters()) == 3 * 4 * 9 + 4 + 4 * 4 * 9 + 4 + 20
    assert [name for name, _ in net.named_modules()] == ["", "stages.0", "stages.1", "tail", "tail.1"]


def test_loading_what_does_not_fit_changes_nothing(queue):
    net = Net(queue)
    before = {name: tensor.numpy() for name, tensor in net.named_parameters()}
    for change, words in (
        ({"stages.0.bias": np.zeros(5)}, r"stages.0.bias has shape \(4,\), got \(5,\)"),
        ({"stages.0.bias": None}, r"missing \['stages.0.bias'\], unknown none"),
        ({"more": np.zeros(5)}, r"missing none, unknown \['more'\]"),
    ):
        values = {name: np.zeros_like(array) for name, array in before.items()} | change
        with pytest.raises(InvalidArgument, match=words):
            net.load_state_dict({name: array for name, array in values.items() if array is not None})
    for name, tensor in net.named_parameters():
        np.testing.assert_array_equal(tensor.numpy(), before[name])
