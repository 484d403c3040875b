"""``new-plugin``: a plugin to begin with, as files that build, load and pass what they do not refuse."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ...api.errors import InvalidArgument
from .output import echo

TEMPLATE = "acme"
"""The name of the template plugin, which is replaced by the new plugin's name in all files."""
PLACES = Path(__file__).parent.parent / "vendor_plugin", Path(__file__).parents[3] / "examples" / "vendor_plugin"
"""The folders where the template plugin may be: in an installed wheel, and in a checkout."""


@click.command("new-plugin")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Where; default: convdispatch-NAME here.")
def new_plugin(name: str, folder: Path | None) -> None:
    """Write a plugin NAME: a solver of 1x1 layers, which refuses all others in words, ready to build and to verify.

    Put your kernel in the place of its own, and let `rejects` name what it cannot do.
    """
    if not re.fullmatch("[a-z][a-z0-9_]{0,40}", name):
        raise click.BadParameter(f"a plugin's name is small letters, digits and _, got {name!r}", param_hint="NAME")
    folder = folder or Path(f"convdispatch-{name}")
    if folder.exists():
        raise InvalidArgument(f"{folder} exists: name another --folder, or remove it")
    template = next(candidate for candidate in PLACES if candidate.is_dir())
    for source in sorted(template.rglob("*")):
        if source.is_file() and source.suffix in (".py", ".cl", ".toml", ".yaml", ".md"):
            target = folder / str(source.relative_to(template)).replace(TEMPLATE, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Markdown links that lead out of the template's folder become plain text.
            text = re.sub(r"\[([^]]*)\]\(\.\./[^)]*\)", r"\1", source.read_text(encoding="utf-8"))
            text = text.replace(TEMPLATE, name).replace(TEMPLATE.capitalize(), name.capitalize())
            target.write_text(text, encoding="utf-8")
    echo(f"{folder} is written; then: pip install -e {folder} && convdispatch verify {name}")
