"""``python -m bench NAME [options]`` runs a case; without a name it lists them."""

from __future__ import annotations

import ast
import difflib
import runpy
import sys
from pathlib import Path

CASES = Path(__file__).parent / "cases"


def summaries() -> dict[str, str]:
    """The first sentence of each case's docstring, by the case's name."""
    paths = sorted(path for path in CASES.glob("*.py") if not path.name.startswith("_"))
    docs = {path.stem: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in paths}
    return {name: text.split("\n\n")[0].replace("\n", " ") for name, text in docs.items()}


def main() -> int:
    """Exit status: 0, or 2 where there is no such case."""
    known = summaries()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(__doc__, *(f"  {case:16} {text}" for case, text in known.items()), sep="\n")
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"no case is named {name!r}{hint}\n`python -m bench` lists them", file=sys.stderr)
        return 2
    sys.path.append(str(CASES.parents[1] / "tests" / "support"))  # where two cases find the nets that tests have, too
    sys.argv[:2] = [f"python -m bench {name}"]
    runpy.run_module(f"bench.cases.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
