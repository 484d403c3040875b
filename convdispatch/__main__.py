"""``python -m convdispatch``."""

from .cli import main

main()
