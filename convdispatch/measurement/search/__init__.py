"""The search behind ``find``: a problem's candidates become times, a winner and records.

A new check of a candidate's result goes to ``trial``, a new family of data to ``families``.

- ``session``: one search: what is tried, in what order, and what ends it.
- ``candidates``: the solvers and configurations that could compute a problem, most promising first.
- ``trial``: runs one candidate between guard zones, compares its result, and samples its times.
- ``trialdata``: random operands, and the error up to which a result counts as right.
- ``families``: families of data that are harder than normal ones, and errors plane by plane.
- ``probing``: tries candidates in a child process first.
- ``precompile``: compiles candidates in several processes before they are measured.
- ``answer``: the verdict, the solvers to set aside, and the records.
"""

from .answer import afterwards
from .session import Search

__all__ = ["Search", "afterwards"]
