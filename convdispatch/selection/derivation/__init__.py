"""Derived solvers: what a plugin refuses, rewritten into what one of its solvers accepts.

``vendor.direct+rotated`` is the solver ``vendor.direct`` on the data gradient seen as a forward convolution with
rotated weights. See docs/design/adr/0006-derivation.md.

- ``rewriting``: the rewritings of a problem, and the copies that each takes.
- ``solver``: which derived solvers there are for a problem, and what each answers.
"""

from .rewriting import REWRITINGS, Rewritten
from .solver import Derived, derived, may_beat, named

__all__ = ["REWRITINGS", "Derived", "Rewritten", "derived", "may_beat", "named"]
