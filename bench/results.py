"""Recorded figures as pages: docs/results/data/*.json become docs/results/*.md.

    python -m bench.results                                       # write all pages
    python -m bench.results --check                               # fail if a page is not what its data say
    python -m bench accuracy | python -m bench.results record accuracy --title "Errors" --machine h200 --command "..."
    python -m bench host_time nets | python -m bench.results record ... --columns row,ours_ms,torch_ms

A file holds ``title``, ``intro`` and ``tables``, or is one table itself. A table has ``title``, ``machine`` (a key of
``machines.json`` or text), ``date``, ``command``, ``columns``, ``rows``, and ``note`` if a reader needs one. Recording
a table under a title that is there already replaces it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "results"
DATA = FOLDER / "data"
FIELDS = {"title", "machine", "date", "command", "columns", "rows", "note"}
HEADER = "<!-- Written by python -m bench.results from {source}: change that, not this. -->\n\n"


def read(path: Path) -> dict[str, Any]:
    """A data file as a page: ``title``, ``intro``, ``tables``. Raises ValueError that names what is wrong."""
    data = json.loads(path.read_text(encoding="utf-8"))
    page = {"intro": "", **data} if "tables" in data else {"title": data["title"], "intro": "", "tables": [data]}
    for table in page["tables"]:
        name = f"{path.name}, table {table.get('title')!r}"
        if not table.keys() <= FIELDS or not table.keys() >= FIELDS - {"note"}:
            raise ValueError(f"{name}: fields are {', '.join(sorted(FIELDS))}, got {', '.join(sorted(table))}")
        if wrong := [row for row in table["rows"] if len(row) != len(table["columns"])]:
            raise ValueError(f"{name}: {len(table['columns'])} columns, but a row is {wrong[0]}")
    return page


def machines() -> dict[str, str]:
    text: dict[str, str] = json.loads((DATA / "machines.json").read_text(encoding="utf-8"))
    return text


def line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def markdown(columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table."""
    return "".join(map(line, [columns, ["---"] * len(columns), *rows])).rstrip("\n")


def read_rows(path: Path | None) -> list[Any]:
    """The JSON of each line of a file to which ``append_row`` writes; none where there is no file yet."""
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()] if path and path.exists() else []


def append_row(path: Path | None, row: Any) -> None:
    """A further line, where a file was asked for: a run that is cut short goes on where it ended."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def render(path: Path) -> str:
    """The Markdown page of a data file."""
    page, known = read(path), machines()
    text = HEADER.format(source=f"data/{path.name}") + f"# {page['title']}\n"
    text += f"\n{page['intro']}\n" if page["intro"] else ""
    for table in page["tables"]:
        machine = known.get(table["machine"], table["machine"])
        command = table["command"] if table["command"].startswith(("see ", "by hand")) else f"`{table['command']}`"
        text += f"\n## {table['title']}\n\nMachine: {machine}. Date: {table['date']}. Command: {command}\n\n"
        text += markdown(table["columns"], table["rows"]) + "\n"
        text += f"\n{table['note']}\n" if table.get("note") else ""
    return text


def overview() -> str:
    """The folder's first page: what there is, and on which machines."""
    text = HEADER.format(source="data/") + "# Results\n\n"
    text += (
        "Every figure that this project claims stands here, with its machine, date and command. Times are medians. A\n"
        "ratio is the other side's time over ours, both taken in turns in one run: above 1, ours is faster. Two runs\n"
        "on one machine differ by some percent.\n\n"
        "To record a table, pipe a script's Markdown table into `python -m bench.results record`.\n\n"
    )
    text += "".join(f"- [{read(path)['title']}]({path.stem}.md)\n" for path in sources())
    return text + "\n## Machines\n\n" + markdown(["name", "what it is"], machines().items()) + "\n"


def sources() -> list[Path]:
    return sorted(path for path in DATA.glob("*.json") if path.name != "machines.json")


def pages() -> dict[Path, str]:
    """Every page's path and text."""
    return {FOLDER / "README.md": overview()} | {FOLDER / f"{path.stem}.md": render(path) for path in sources()}


def compact(page: dict[str, Any]) -> str:
    """JSON with a line a row, so that a change of a figure is a change of a line."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def one(table: dict[str, Any]) -> str:
        plain = [f'"{key}": {text(table[key])}' for key in table if key != "rows"]
        rows = ",\n    ".join(text(row) for row in table["rows"])
        return ",\n   ".join([*plain, f'"rows": [\n    {rows}]'])

    tables = "},\n  {".join(one(table) for table in page["tables"])
    return f'{{"title": {text(page["title"])},\n "intro": {text(page["intro"])},\n "tables": [\n  {{{tables}}}]}}\n'


def parse_table(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the first Markdown table among lines."""
    rules = [text.strip().strip("|") for text in lines if text.lstrip().startswith("|")]
    cells = [[cell.strip() for cell in text.split("|")] for text in rules]
    if len(cells) < 3:
        raise ValueError("no Markdown table on standard input: a head, a rule and at least one row begin with |")
    return cells[0], cells[2:]


def parse_objects(text: str, columns: list[str]) -> tuple[list[str], list[list[str]]]:
    """The same of JSON objects, one a line or in a list: ``a.b`` is b of a. Rows that lack a column are left out."""

    def cell(row: Any, path: str) -> str:
        for key in path.split("."):
            row = row.get(key, "") if isinstance(row, dict) else ""
        return f"{row:.4g}" if isinstance(row, float) else str(row)

    lines = [line for line in text.splitlines() if line.startswith("{")]
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
    table = [[cell(row, path) for path in columns] for row in rows]
    if not (full := [row for row in table if all(row)]):
        raise ValueError(f"no JSON object on standard input has {', '.join(columns)}")
    return columns, full


def store(name: str, table: dict[str, Any]) -> None:
    """Put a table into a data file, in the place of one of the same title, and write the pages."""
    path = DATA / f"{name}.json"
    page = read(path) if path.exists() else {"title": name, "intro": "", "tables": []}
    titles = [old["title"] for old in page["tables"]]
    place = titles.index(table["title"]) if table["title"] in titles else len(titles)
    page["tables"][place : place + 1] = [table]
    path.write_text(compact(page), encoding="utf-8")
    write()


def record(arguments: argparse.Namespace) -> None:
    text = sys.stdin.read()
    named = arguments.columns.split(",")
    columns, rows = parse_objects(text, named) if arguments.columns else parse_table(text.splitlines())
    table = {key: getattr(arguments, key) for key in ("title", "machine", "date", "command")}
    store(
        arguments.name,
        table | {"columns": columns, "rows": rows} | ({"note": arguments.note} if arguments.note else {}),
    )


def write(check: bool = False) -> list[Path]:
    """Write the pages that are not what their data say, or only name them."""
    stale = [(path, text) for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    for path, text in stale:
        print(f"{path.name}: {'is not what its data say' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return [path for path, _ in stale]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not what its data say")
    recording = parser.add_subparsers(dest="what").add_parser("record", help="add a table from standard input")
    recording.add_argument("name", help="the data file's name, without .json")
    for name in ("title", "machine", "command"):
        recording.add_argument(f"--{name}", required=True)
    recording.add_argument("--date", default=str(datetime.date.today()))
    recording.add_argument("--note", default="")
    recording.add_argument("--columns", default="", help="of JSON objects on standard input, with commas")
    arguments = parser.parse_args()
    if arguments.what:
        record(arguments)
    return 1 if write(arguments.check) and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
