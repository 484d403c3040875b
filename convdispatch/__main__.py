"""``python -m convdispatch``."""

from .tools.cli import run

run()
