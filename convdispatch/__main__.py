"""``python -m convdispatch``."""

from .tools.cli import main

main()
