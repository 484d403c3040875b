"""The matrix product of all lowerings: OpenCL text generated for one size, layout and epilogue.

It turns a specification and a configuration into a compiled product. A new option is a field of ``GemmSpec`` or a key
of the configuration, which the kernels' templates read.

- ``spec``: the specification of a product: sizes, strides and epilogue.
- ``configs``: the configurations of a product for a device, the default first.
- ``cost``: predicts the time of a product on a CPU.
- ``layout``: the packed form of an operand, and which operands are prefetched.
- ``source``: the kernels' text.
- ``plan``: the compiled product.
"""

from .configs import configs
from .cost import PACKED, product_cost
from .layout import PackedLayout, packed_layout
from .plan import GemmPlan, workspace_size
from .spec import Axis, Epilogue, GemmSpec, Matrix

__all__ = [
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
