"""Formulas become kernels: expressions, element types, strides, and the text of kernels.

- ``elements``: element types in OpenCL C.
- ``expression``: formulas to OpenCL C, and their derivatives.
- ``kernel``: the kernel of an element-wise formula.
- ``reduction_kernel``: the kernels of a reduction.
- ``strides``: views with as few axes as they need.
"""
