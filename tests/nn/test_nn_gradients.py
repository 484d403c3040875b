"""Every operation's gradient: numerically, in float64 along random directions, and against torch's."""

import importlib.util

import numpy as np
import pytest
from checking import compare

from convdispatch.elementwise import apply, concatenate, mean, reduce
from convdispatch.nn import Tape, functional
from convdispatch.tensor import Parameter, Tensor

RNG = np.random.default_rng


def arrays(*shapes, seed=0):
    rng = RNG(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def distinct(*shape, seed=0):
    """Values far enough apart that a small step changes no order; none near 0."""
    count = int(np.prod(shape))
    return (RNG(seed).permutation(count) - count / 2 + 0.25).reshape(shape) / count * 4


def nhwc(array):
    return np.moveaxis(array, 1, -1)


# name: (ours of tensors, torch's of torch tensors or None, operands)
CASES = {
    "add": (lambda a, b: a + b, lambda t, a, b: a + b, arrays((3, 4), (3, 4))),
    "broadcast": (lambda a, b: a * b - b / a, lambda t, a, b: a * b - b / a, [a + 3 for a in arrays((3, 4), (4,))]),
    "subtract, negate": (lambda a, b: 2 - a - (-b) + 1, lambda t, a, b: 2 - a - (-b) + 1, arrays((3, 1), (1, 4))),
    "divide by": (lambda a: 1 / a, lambda t, a: 1 / a, [arrays((5,))[0] + 4]),
    "powers": (lambda a: a**3 + a**0.5 + a**2, lambda t, a: a**3 + a**0.5 + a**2, [np.abs(arrays((7,))[0]) + 1]),
    "formula": (
        lambda a, b: apply("t = exp(a) * b; t * tanh(b) + log(square(a) + 1) - sqrt(abs(b) + 1)", a=a, b=b),
        lambda t, a, b: a.exp() * b * b.tanh() + t.log(a * a + 1) - t.sqrt(b.abs() + 1),
        arrays((4, 5), (4, 1)),
    ),
    "more functions": (
        lambda a: apply("sin(a) * cos(a) + erf(a) + expm1(a) + log1p(square(a)) + rsqrt(2 + sin(a)) + sigmoid(a)", a=a),
        lambda t, a: a.sin() * a.cos() + t.erf(a) + t.expm1(a) + t.log1p(a * a) + t.rsqrt(2 + a.sin()) + a.sigmoid(),
        arrays((40,)),
    ),
    "max, min, where": (
        lambda a, b: apply("max(a, b, 0.5) - min(a, b) * where(a > b, a, 2) + (a if b < 0 else b)", a=a, b=b),
        lambda t, a, b: t.maximum(a, b).clamp(min=0.5) - t.minimum(a, b) * t.where(a > b, a, 2) + t.where(b < 0, a, b),
        [distinct(6, 7) + 0.003, distinct(6, 7, seed=1) + 0.001],
    ),
    "traced": (
        lambda a: apply("where(v > 0, v * v, exp(v)) % 0.7", v=a),
        None,
        [distinct(30)],
    ),
    "used twice": (lambda a: a * a + apply("tanh(a)", a=a) * a, lambda t, a: a * a + a.tanh() * a, arrays((5, 3))),
    "views": (
        lambda a: a.transpose(1, 0).copy().reshape(12)[2:9:2],
        lambda t, a: a.T.reshape(12)[2:9:2],
        arrays((3, 4)),
    ),
    "expand": (lambda a: a.expand(5, 3, 4) * 2, lambda t, a: a.expand(5, 3, 4) * 2, arrays((3, 1))),
    "sum": (lambda a: reduce("sum", "x", (0, 2), x=a), lambda t, a: a.sum((0, 2)), arrays((3, 4, 5))),
    "sum of a formula": (
        lambda a, b: reduce("sum", "x * y * y", 1, x=a, y=b),
        lambda t, a, b: (a * b * b).sum(1),
        arrays((3, 4, 5), (4, 1)),
    ),
    "mean": (lambda a: mean(a, -1, keepdims=True), lambda t, a: a.mean(-1, keepdim=True), arrays((3, 4))),
    "concatenate": (
        lambda a, b: concatenate([a, b, a], 1),
        lambda t, a, b: t.cat([a, b, a], 1),
        arrays((2, 3, 4), (2, 1, 4)),
    ),
    "flatten": (lambda a: functional.flatten(a), lambda t, a: a.flatten(1), arrays((2, 3, 4))),
    "add and relu": (
        lambda a, b: functional.relu(a + b),
        lambda t, a, b: (a + b).relu(),
        [distinct(4, 5), distinct(4, 5) * 0.5],
    ),
    "softmax": (functional.softmax, lambda t, a: a.softmax(-1), arrays((3, 70))),
    "softmax of channels": (lambda a: functional.softmax(a, 1), lambda t, a: a.softmax(1), arrays((2, 5, 3))),
    "log_softmax": (lambda a: functional.log_softmax(a, 1), lambda t, a: a.log_softmax(1), arrays((2, 5, 3))),
    "mse": (functional.mse_loss, lambda t, a, b: ((a - b) ** 2).mean(), arrays((3, 4), (3, 4))),
    "linear": (
        functional.linear,
        lambda t, x, w, b: t.nn.functional.linear(x, w, b),
        arrays((3, 6), (4, 6), (4,)),
    ),
    "linear, channels last, elu": (
        lambda x, w, b: functional.linear(x, w, b, activation="elu(0.5)", layout="nhwc"),
        lambda t, x, w, b: t.nn.functional.elu(t.nn.functional.linear(x, w, b), 0.5),
        arrays((3, 6), (4, 6), (4,)),
    ),
}
for _name in ("relu", "relu6", "leaky_relu(0.2)", "elu", "sigmoid", "silu", "tanh", "gelu", "softplus", "hardsigmoid",
              "hardswish", "mish"):  # fmt: skip
    _theirs = _name.split("(")[0]
    CASES["activation " + _name] = (
        lambda a, n=_name: functional.activate(a, n),
        lambda t, a, n=_theirs: getattr(t.nn.functional, n)(a, *((0.2,) if n == "leaky_relu" else ())),
        [distinct(60) * 4 + 0.013],
    )
CONVOLUTIONS = {
    "plain": ((2, 3, 6, 7), (4, 3, 3, 2), {"stride": 1}),
    "strided, padded": ((2, 4, 7, 8), (6, 2, 3, 3), {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    "dilated depthwise": ((1, 4, 9, 8), (4, 1, 3, 3), {"dilation": 2, "padding": 2, "groups": 4}),
}
for _name, (_x, _w, _options) in CONVOLUTIONS.items():
    for _activation in (None, "relu", "silu", "leaky_relu(0.1)", "relu6", "hardsigmoid", "gelu"):
        if _activation and _name != "plain":
            continue
        _act = _activation.split("(")[0] if _activation else None
        CASES[f"convolution, {_name}, {_activation}"] = (
            lambda x, w, b, o=_options, a=_activation: functional.convolution(x, w, b, activation=a, **o),
            lambda t, x, w, b, o=_options, a=_act: (
                lambda y: y if a is None else getattr(t.nn.functional, a)(y, *((0.1,) if a == "leaky_relu" else ()))
            )(t.nn.functional.conv2d(x, w, b, **o)),
            arrays(_x, _w, (_w[0],)),
        )
    CASES[f"convolution, {_name}, channels last"] = (
        lambda x, w, b, o=_options: functional.convolution(x, w, b, layout="nhwc", **o),
        lambda t, x, w, b, o=_options: t.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), b, **o
        ).permute(0, 2, 3, 1),
        [nhwc(a) if a.ndim == 4 else a for a in arrays(_x, _w, (_w[0],))],
    )
CASES["convolution and residual"] = (
    lambda x, w, r: functional.convolution(x, w, padding=1, residual=r, activation="relu"),
    lambda t, x, w, r: (t.nn.functional.conv2d(x, w, padding=1) + r).relu(),
    arrays((2, 3, 5, 5), (3, 3, 3, 3), (2, 3, 5, 5)),
)
CASES["convolution in 1-D"] = (
    lambda x, w, b: functional.convolution(x, w, b, stride=2, padding=1),
    lambda t, x, w, b: t.nn.functional.conv1d(x, w, b, stride=2, padding=1),
    arrays((2, 3, 9), (4, 3, 3), (4,)),
)
for _name, _options in {
    "plain": {},
    "strided": {"stride": 2, "padding": 1, "output_padding": 1},
    "grouped": {"stride": (1, 2), "dilation": 2, "groups": 2},
}.items():
    _w = (4, 3 // 1, 3, 2) if _options.get("groups") != 2 else (4, 3, 3, 2)
    CASES[f"transposed convolution, {_name}"] = (
        lambda x, w, b, o=_options: functional.transposed_convolution(x, w, b, **o),
        lambda t, x, w, b, o=_options: t.nn.functional.conv_transpose2d(x, w, b, **o),
        arrays((2, 4, 5, 4), _w, (3 * _options.get("groups", 1),)),
    )
POOLS = {
    "max": ("max_pool", {"kernel": 2}, "max_pool2d", {}),
    "max overlapping": ("max_pool", {"kernel": 3, "stride": 2, "padding": 1}, "max_pool2d", {}),
    "max, ceil": ("max_pool", {"kernel": 3, "stride": 2, "ceil_mode": True}, "max_pool2d", {}),
    "max dilated": (
        "max_pool",
        {"kernel": (2, 3), "stride": (1, 2), "padding": (1, 1), "dilation": (3, 2)},
        "max_pool2d",
        {},
    ),
    "average": ("avg_pool", {"kernel": (2, 3)}, "avg_pool2d", {}),
    "average overlapping": ("avg_pool", {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True}, "avg_pool2d", {}),
    "average inside": (
        "avg_pool",
        {"kernel": 3, "stride": 1, "padding": 1, "count_include_pad": False},
        "avg_pool2d",
        {},
    ),
    "adaptive average": ("adaptive_avg_pool", {"size": (3, 5)}, "adaptive_avg_pool2d", {}),
    "adaptive average up": ("adaptive_avg_pool", {"size": (9, 11)}, "adaptive_avg_pool2d", {}),
    "global average": ("adaptive_avg_pool", {"size": 1}, "adaptive_avg_pool2d", {}),
}
for _name, (_ours, _options, _theirs, _) in POOLS.items():
    _torch = {("kernel_size" if k == "kernel" else "output_size" if k == "size" else k): v for k, v in _options.items()}
    CASES[f"pool {_name}"] = (
        lambda x, f=_ours, o=_options: getattr(functional, f)(x, **o),
        lambda t, x, f=_theirs, o=_torch: getattr(t.nn.functional, f)(x, **o),
        [distinct(2, 3, 7, 8)],
    )
    CASES[f"pool {_name}, channels last"] = (
        lambda x, f=_ours, o=_options: getattr(functional, f)(x, layout="nhwc", **o),
        lambda t, x, f=_theirs, o=_torch: getattr(t.nn.functional, f)(x.permute(0, 3, 1, 2), **o).permute(0, 2, 3, 1),
        [nhwc(distinct(2, 3, 7, 8))],
    )


def norm(training, **options):
    def ours(x, scale, shift, *more):
        channels = scale.shape[0]
        running = [Tensor.from_numpy(np.full(channels, v, x.dtype.name), x.queue) for v in (0.3, 2.0)]
        extra = {"residual": more[0]} if more else {}
        return functional.batch_norm(x, scale, shift, *running, training=training, **options, **extra)

    def theirs(t, x, scale, shift, *more):
        running = [t.full(scale.shape, v, dtype=x.dtype) for v in (0.3, 2.0)]
        last = options.get("layout") == "nhwc"
        y = t.nn.functional.batch_norm(x.permute(0, 3, 1, 2) if last else x, *running, scale, shift, training=training)
        y = y.permute(0, 2, 3, 1) if last else y
        y = y + more[0] if more else y
        return y.relu() if options.get("activation") else y

    return ours, theirs


for _mode in (True, False):
    _label = "training" if _mode else "using"
    CASES[f"batch norm, {_label}"] = (*norm(_mode), arrays((3, 4, 5, 2), (4,), (4,)))
    CASES[f"batch norm, {_label}, relu"] = (*norm(_mode, activation="relu"), arrays((3, 4, 5, 2), (4,), (4,), seed=3))
    CASES[f"batch norm, {_label}, relu, residual"] = (
        *norm(_mode, activation="relu"),
        arrays((3, 4, 5, 2), (4,), (4,), (3, 4, 5, 2)),
    )
    CASES[f"batch norm, {_label}, channels last, residual"] = (
        *norm(_mode, layout="nhwc"),
        arrays((3, 5, 2, 4), (4,), (4,), (3, 5, 2, 4)),
    )


def gradients(queue, function, operands, dtype):
    """(weights, gradients of sum(function * weights) by every operand) with the tape."""
    parameters = [Parameter(Tensor.from_numpy(a.astype(dtype), queue)) for a in operands]
    with Tape() as tape:
        y = function(*parameters)
    weights = RNG(9).standard_normal(y.shape)
    tape.backward(y, Tensor.from_numpy(weights.astype(dtype), queue))
    assert len(tape) == 0
    return weights, [p.grad.numpy() for p in parameters]


def value(queue, function, operands, weights):
    y = function(*(Tensor.from_numpy(a, queue) for a in operands)).numpy()
    return float((y * weights).sum())


@pytest.mark.parametrize("name", CASES)
def test_gradients_numerically(queue, full, name):
    """What torch has not, and every eighth of the rest: those are compared with torch's below."""
    if not queue.device.double_fp_config:
        pytest.skip("the device has no float64")
    function, theirs, operands = CASES[name]
    if not full and theirs is not None and list(CASES).index(name) % 8 and importlib.util.find_spec("torch"):
        pytest.skip("with --full only, where torch is there to compare with")
    weights, slopes = gradients(queue, function, operands, "float64")
    step = 1e-5
    for which, slope in enumerate(slopes):
        assert slope.shape == operands[which].shape
        for seed in range(2):
            direction = RNG(seed).standard_normal(operands[which].shape)
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in operands]
                moved[which] = operands[which] + sign * step * direction
                sides.append(value(queue, function, moved, weights))
            numeric = (sides[0] - sides[1]) / (2 * step)
            size = np.abs(slope * direction).sum() + 1
            assert abs(numeric - (slope * direction).sum()) < 1e-6 * size, (name, which, numeric)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_torchs(queue, thinned, name):
    """Each case; poolings in one layout by turns."""
    pool, last = name.removeprefix("pool ").removesuffix(", channels last"), name.endswith(", channels last")
    thinned(pool in POOLS and last != list(POOLS).index(pool) % 2)
    torch = pytest.importorskip("torch", reason="torch is not installed: the numeric checks stand alone")
    function, theirs, operands = CASES[name]
    if theirs is None:
        pytest.skip("torch has no such operation; the numeric check stands alone")
    given = [torch.from_numpy(np.ascontiguousarray(a, np.float32)).requires_grad_() for a in operands]
    y = theirs(torch, *given)
    weights, slopes = gradients(queue, function, operands, "float32")
    (y * torch.from_numpy(weights.astype(np.float32))).sum().backward()
    mine = function(*(Tensor.from_numpy(a.astype(np.float32), queue) for a in operands))
    compare(mine.numpy(), y.detach().double().numpy(), 2e-5)
    for slope, tensor in zip(slopes, given, strict=True):
        compare(slope, tensor.grad.double().numpy(), 3e-5)
