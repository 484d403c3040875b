"""Writes the table of environment variables in docs/use/environment.md from the one in convdispatch/api/settings.py.

python docs/variables.py
"""

from __future__ import annotations

import re
from pathlib import Path

from convdispatch.api.settings import SETTINGS

PAGE = Path(__file__).parent / "use" / "environment.md"
_TABLE = re.compile(r"^\| variable \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)


def table() -> str:
    """A row for each variable: its name, what it does, examples."""
    rows = ["| variable | what it does | example |", "|---|---|---|"]
    for each in SETTINGS.values():
        examples = ", ".join(f"`{example}`" for example in each.examples)
        rows.append(f"| `{each.name}` | {each.meaning} | {examples} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with today's table."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
