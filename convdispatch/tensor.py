"""Tensor and Parameter, by the name under which users import them; they are made in ``convdispatch.elementwise``."""

from .elementwise.tensor import Parameter, Tensor

__all__ = ["Parameter", "Tensor"]
