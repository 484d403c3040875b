"""The matrix product that every lowering leans on: OpenCL text generated for one size, layout and epilogue.

``GemmSpec`` says what is multiplied, ``configs`` how it may be done on a device, ``GemmPlan`` compiles and runs it,
``packed_layout`` tells other kernels how to write an operand in the form that the product reads fastest.
"""

from .configs import configs
from .cost import LAUNCH, PACKED, product_cost
from .layout import PackedLayout, packed_layout
from .plan import GemmPlan, workspace_size
from .spec import Axis, Epilogue, GemmSpec, Matrix

__all__ = [
    "LAUNCH",
    "PACKED",
    "Axis",
    "Epilogue",
    "GemmPlan",
    "GemmSpec",
    "Matrix",
    "PackedLayout",
    "configs",
    "packed_layout",
    "product_cost",
    "workspace_size",
]
