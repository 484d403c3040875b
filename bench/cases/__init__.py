"""A module a case; ``main`` is what ``python -m bench NAME`` calls."""
