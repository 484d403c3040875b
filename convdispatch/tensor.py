"""Tensor and Parameter, under the name by which users import them; ``convdispatch.elementwise`` implements them."""

from .elementwise.tensor import Parameter, Tensor

__all__ = ["Parameter", "Tensor"]
