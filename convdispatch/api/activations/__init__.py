"""Activations that an epilogue can apply: one table for kernels, reference, gradients, doors and plugins.

An activation is written ``name`` or ``name(number, ...)``, as in ``"relu"`` or ``"leaky_relu(0.1)"``. ``table`` is the
only place that names them: a new one is an entry there. What has no counterpart in a door or in a plugin's library is
refused in words.
"""

from .table import ACTIVATIONS, Activation, OneDNN, Onnx, Torch
from .words import (
    activation_macro,
    apply_activation,
    formula_of,
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
    "formula_of",
    "gradient_of_input",
    "gradient_of_result",
    "onednn_eltwise",
    "parse_activation",
]
