"""Formulas become kernels: expressions, element types, strides, and the text of kernels."""
