"""Activations that an epilogue can apply: one table for kernels, reference, gradients, frameworks and plugins.

An activation is written ``name`` or ``name(number, ...)``, as in ``"relu"`` or ``"leaky_relu(0.1)"``. ``table`` is the
only module that names them: a new activation is an entry there. An activation without a counterpart in a framework or
in a plugin's library is refused with a reason.
"""

from .table import ACTIVATIONS, Activation, OneDNN, Onnx, Torch
from .words import (
    activation_macro,
    apply_activation,
    apply_gradient,
    formula_of,
    gradient_function,
    gradient_of_input,
    gradient_of_result,
    onednn_eltwise,
    parse_activation,
)

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "OneDNN",
    "Onnx",
    "Torch",
    "activation_macro",
    "apply_activation",
    "apply_gradient",
    "formula_of",
    "gradient_function",
    "gradient_of_input",
    "gradient_of_result",
    "onednn_eltwise",
    "parse_activation",
]
