"""``kernel``: the kernels of a solver, as rendered for a problem."""

from __future__ import annotations

import json

import click

from .options import DEVICE
from .output import echo


@click.command()
@click.argument("problem")
@click.option("--solver", metavar="NAME", help="Whose kernels; default: the one that would run.")
@click.option("--config", metavar="JSON", help="The solver's configuration; default: its first.")
@DEVICE
@click.option("--described", metavar="KIND", help="A device that need not be there: h200, a100, mi300x, avx512, ...")
def kernel(problem: str, solver: str | None, config: str | None, device: str | None, described: str | None) -> None:
    """Print the kernels that a solver compiles for PROBLEM, as rendered, without compiling them."""
    from ...device import jsontext
    from ...measurement.grammar import read
    from ..rendered import rendered

    try:
        configuration = None if config is None else dict(jsontext.loads(config))
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"a configuration is a JSON object: {error}", param_hint="--config") from None
    name, used, texts = rendered(read(problem), solver, device=device, described=described, config=configuration)
    count = f"{len(texts)} program{'s' * (len(texts) != 1)}" if texts else "no program of its own: a library's"
    echo(f"// {name} {json.dumps(dict(used))}: {count}")
    for place, text in enumerate(texts, 1):
        echo(f"\n// --- program {place} of {len(texts)} ---")
        echo(text)
