"""The table of activations: each one's formulas, gradient, range, and names in other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Torch:
    """The activation in PyTorch: a function of ``torch`` or ``torch.nn.functional``, and its layer in ``torch.nn``."""

    function: str
    module: str
    attributes: Mapping[str, float] = field(default_factory=dict)
    """The attributes of PyTorch's layer that are the activation's numbers, in order, with PyTorch's defaults."""
    only: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of the function, in order, each with the only value that this activation has."""


@dataclass(frozen=True)
class Onnx:
    """The activation in ONNX. Without ``attributes`` the operator's numbers are inputs, or it has several meanings, and
    ``convdispatch.onnx`` has a function for it."""

    operator: str
    attributes: Mapping[str, float] | None = None
    """The attributes of ONNX's operator that are the activation's numbers, in order, with ONNX's defaults."""


@dataclass(frozen=True)
class OneDNN:
    """The activation in oneDNN: the number and name of its ``dnnl_eltwise_*``; benchdnn uses the same name."""

    kind: int
    name: str
    alpha_beta: tuple[float, ...] | None = None
    """oneDNN's alpha and beta, if they are constants and not the activation's numbers."""


@dataclass(frozen=True, kw_only=True)
class Activation:
    """One activation. Formulas use comparisons, not ``max``, so that the result of NaN is NaN, as in PyTorch.

    In formulas (``convdispatch.elementwise``) and OpenCL C ``{0}`` and ``{1}`` are the activation's numbers.
    """

    parameters: tuple[float, ...] = ()
    """Default values of the activation's numbers, which follow its name in parentheses."""
    opencl: str
    """Expression in OpenCL C of ``v`` (scalar or vector) and ``T`` (its type)."""
    formula: str
    """The activation as a formula of ``x``."""
    gradient: str
    """Formula of ``dy`` and ``x``: the result's gradient times the slope, which is 0 at corners, as in PyTorch."""
    from_result: str | None = None
    """The gradient as a formula of ``dy`` and the result ``y``, for a fused epilogue, which stores no ``x``; None if y
    does not determine it."""
    least: float | None = None
    """The least value of the activation's first number for which ``from_result`` is valid; None for every value."""
    exact: bool = False
    """Whether the activation maps integers to integers."""
    saturates: bool = False
    """Whether the result of large sums is a constant, so that errors come from the sums near zero."""
    shrinks: float = 0.0
    """How much relative errors grow because the result's norm is smaller than the input's: by this factor times the
    fourth root of a sum's length, on standard normal data."""
    torch: Torch | None = None
    onnx: Onnx | None = None
    onednn: OneDNN | None = None


_LINE = "(v) * (T)({0}) + (T)({1})"
_HARD_SIGMOID = f"({_LINE} < (T)(0) ? (T)(0) : {_LINE} > (T)(1) ? (T)(1) : {_LINE})"
_SOFTPLUS = "where(x > 36, x, log1p(exp(x)))"  # log1p(exp(x)) rounds to x for x above 36, in float64 too
# Of gelu's approximation: (1 + tanh(u)) / 2 of its polynomial u, and the slope of 2 u.
_TANH_SIGMOID = "sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x))"
_TANH_SLOPE = "(1.5957691216057308 + 0.21406444881780076 * x * x)"

ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        opencl="((v) < (T)(0) ? (T)(0) : (v))",
        formula="where(x < 0, 0, x)",
        gradient="where(x > 0, dy, 0)",
        from_result="where(y > 0, dy, 0)",
        exact=True,
        torch=Torch("relu", "ReLU"),
        onnx=Onnx("Relu", {}),
        onednn=OneDNN(32, "relu", ()),
    ),
    "relu6": Activation(
        opencl="((v) < (T)(0) ? (T)(0) : (v) > (T)(6) ? (T)(6) : (v))",
        formula="clip(x, 0, 6)",
        gradient="where(x > 0, where(x < 6, dy, 0), 0)",
        from_result="where(y > 0, where(y < 6, dy, 0), 0)",
        exact=True,
        shrinks=0.45,
        torch=Torch("relu6", "ReLU6"),
        onnx=Onnx("Clip"),
        onednn=OneDNN(46, "clip", (0.0, 6.0)),
    ),
    "clip": Activation(
        parameters=(0.0, 6.0),
        opencl="((v) < (T)({0}) ? (T)({0}) : (v) > (T)({1}) ? (T)({1}) : (v))",
        formula="clip(x, {0}, {1})",
        gradient="where(x > {0}, where(x < {1}, dy, 0), 0)",
        from_result="where(y > {0}, where(y < {1}, dy, 0), 0)",
        exact=True,
        torch=Torch("hardtanh", "Hardtanh", {"min_val": -1.0, "max_val": 1.0}),
        onnx=Onnx("Clip"),
        onednn=OneDNN(46, "clip"),
    ),
    "leaky_relu": Activation(
        parameters=(0.01,),
        opencl="((v) < (T)(0) ? (v) * (T)({0}) : (v))",
        formula="where(x < 0, {0} * x, x)",
        gradient="where(x > 0, dy, {0} * dy)",
        from_result="where(y > 0, dy, {0} * dy)",
        least=0.0,
        torch=Torch("leaky_relu", "LeakyReLU", {"negative_slope": 0.01}),
        onnx=Onnx("LeakyRelu", {"alpha": 0.01}),
        onednn=OneDNN(32, "relu"),
    ),
    "elu": Activation(
        parameters=(1.0,),
        opencl="((v) < (T)(0) ? (T)({0}) * expm1(v) : (v))",
        formula="where(x < 0, {0} * expm1(x), x)",
        gradient="where(x > 0, dy, dy * {0} * exp(x))",
        from_result="where(y > 0, dy, dy * (y + {0}))",
        least=0.0,
        torch=Torch("elu", "ELU", {"alpha": 1.0}, {"scale": 1, "input_scale": 1}),
        onnx=Onnx("Elu", {"alpha": 1.0}),
        onednn=OneDNN(34, "elu"),
    ),
    "sigmoid": Activation(
        opencl="((T)(1) / ((T)(1) + exp(-(v))))",
        formula="sigmoid(x)",
        gradient="dy * sigmoid(x) * (1 - sigmoid(x))",
        from_result="dy * y * (1 - y)",
        saturates=True,
        shrinks=0.4,
        torch=Torch("sigmoid", "Sigmoid"),
        onnx=Onnx("Sigmoid", {}),
        onednn=OneDNN(41, "logistic", ()),
    ),
    "silu": Activation(
        opencl="((v) / ((T)(1) + exp(-(v))))",
        formula="x * sigmoid(x)",
        gradient="dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))",
        torch=Torch("silu", "SiLU"),
        onnx=Onnx("Swish"),
        onednn=OneDNN(44, "swish", (1.0,)),
    ),
    "tanh": Activation(
        opencl="tanh(v)",
        formula="tanh(x)",
        gradient="dy * (1 - tanh(x) * tanh(x))",
        from_result="dy * (1 - y * y)",
        saturates=True,
        shrinks=0.75,
        torch=Torch("tanh", "Tanh"),
        onnx=Onnx("Tanh", {}),
        onednn=OneDNN(33, "tanh", ()),
    ),
    "hardsigmoid": Activation(
        parameters=(1 / 6, 0.5),
        opencl=_HARD_SIGMOID,
        formula="clip(x * {0} + {1}, 0, 1)",
        gradient="where(x * {0} + {1} > 0, where(x * {0} + {1} < 1, {0} * dy, 0), 0)",
        from_result="where(y > 0, where(y < 1, {0} * dy, 0), 0)",
        saturates=True,
        shrinks=0.4,
        torch=Torch("hardsigmoid", "Hardsigmoid"),
        onnx=Onnx("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
        onednn=OneDNN(40, "hardsigmoid"),
    ),
    "hardswish": Activation(
        opencl="((v) * " + _HARD_SIGMOID.format(1 / 6, 0.5) + ")",
        formula="x * clip(x / 6 + 0.5, 0, 1)",
        gradient="where(x < -3, 0, where(x > 3, dy, dy * (x / 3 + 0.5)))",
        torch=Torch("hardswish", "Hardswish"),
        onnx=Onnx("HardSwish", {}),
        onednn=OneDNN(52, "hardswish", (1 / 6, 0.5)),
    ),
    "gelu": Activation(
        opencl="((T)(0.5) * (v) * ((T)(1) + erf((v) * (T)(0.7071067811865476))))",
        formula="0.5 * x * (1 + erf(x * 0.7071067811865476))",
        gradient="dy * (0.5 * (1 + erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * exp(-0.5 * x * x))",
        torch=Torch("gelu", "GELU", only={"approximate": "none"}),
        onnx=Onnx("Gelu"),
        onednn=OneDNN(49, "gelu_erf", ()),
    ),
    "gelu_tanh": Activation(
        opencl="((v) / ((T)(1) + exp((v) * ((T)(-1.5957691216057308) - (T)(0.07135481627260025) * (v) * (v)))))",
        formula=f"x * {_TANH_SIGMOID}",
        gradient=f"dy * {_TANH_SIGMOID} * (1 + x * (1 - {_TANH_SIGMOID}) * {_TANH_SLOPE})",
        onednn=OneDNN(43, "gelu_tanh", ()),
    ),
    "mish": Activation(
        opencl="((v) * tanh(log1p(exp(v))))",
        formula=f"x * tanh({_SOFTPLUS})",
        gradient=f"dy * (tanh({_SOFTPLUS}) + x * sigmoid(x) * (1 - tanh({_SOFTPLUS}) * tanh({_SOFTPLUS})))",
        torch=Torch("mish", "Mish"),
        onnx=Onnx("Mish", {}),
        onednn=OneDNN(51, "mish", ()),
    ),
    "softplus": Activation(
        opencl="((v) > (T)(36) ? (v) : log1p(exp(v)))",
        formula=_SOFTPLUS,
        gradient="dy * sigmoid(x)",
        from_result="-dy * expm1(-y)",
        torch=Torch("softplus", "Softplus", only={"beta": 1, "threshold": 20}),
        onnx=Onnx("Softplus", {}),
        onednn=OneDNN(39, "srelu", (1.0,)),
    ),
}
