"""Keeps Dynamo from compiling functions of this package, and code that our operators run.

Where a graph breaks, PyTorch runs the model's operators with Dynamo looking on, which would capture the Python code
below them. Calls of our functions in captured code are inlined as any others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import get_eval_frame_callback, set_eval_frame

looks_on = get_eval_frame_callback
"""Dynamo's callback for each Python call; None where Dynamo is not active in this thread."""


@functools.cache
def skip_our_frames() -> None:
    """Keep Dynamo from starting a graph in this package's files."""
    from torch._dynamo import trace_rules

    if hasattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED"):
        trace_rules.add("convdispatch")
        trace_rules.BUILTIN_INLINE_WHEN_CALLED.add(trace_rules.SKIP_DIRS[-1])


def unseen(run: Callable[..., Any], *arguments: Any) -> Any:
    """``run(*arguments)`` without Dynamo, also in the functions that it calls: the code of plugins and of other
    packages."""
    skip_our_frames()
    callback = set_eval_frame(None)
    try:
        return run(*arguments)
    finally:
        set_eval_frame(callback)
