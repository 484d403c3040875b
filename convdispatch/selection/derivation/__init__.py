"""Derived solvers: what a plugin refuses, rewritten into what one of its solvers accepts.

``vendor.direct+rotated`` is the solver ``vendor.direct`` on the data gradient seen as a forward convolution with
rotated weights. See docs/design/adr/0006-derivation.md.
"""

from .rewriting import REWRITINGS, Rewritten
from .solver import Derived, derived, may_beat, named

__all__ = ["REWRITINGS", "Derived", "Rewritten", "derived", "may_beat", "named"]
