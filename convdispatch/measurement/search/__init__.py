"""The search behind ``find``: candidates, their trial, benchmarking, the verdict."""

from .answer import afterwards
from .session import Search

__all__ = ["Search", "afterwards"]
