"""The matrix product that every lowering leans on: OpenCL text generated for one size, layout and epilogue.

``GemmSpec`` says what is multiplied. A new kind of operand or epilogue begins there.

- ``spec``: what is multiplied: sizes, layouts, dtype, epilogue.
- ``configs``: how it may be done on a device, best first.
- ``cost``: the predicted time of a configuration.
- ``source``: the kernel's text for a spec and a configuration.
- ``layout``: how other kernels write an operand in the form that the product reads fastest.
- ``plan``: compiles and runs a product.
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
