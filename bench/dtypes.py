"""Sixteen bits beside float32 on a CPU, layer by layer: ours in each dtype and PyTorch's, in turns in one run.

    python bench/dtypes.py --net cpu10 --direction fwd

The better of both layouts counts. A ratio is float32's time over the dtype's, so 1 is no slower; ``torch`` is PyTorch's
time in that dtype over ours. What is timed is chosen without a search; weights are packed beforehand (``--fresh``: in
each call).
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path

import click
import ml_dtypes  # noqa: F401 its import makes "bfloat16" a dtype of NumPy's
import results
import rich
from layers import interleaved, layers, solver_work, torch_work
from rich.table import Table

DTYPES = ("float32", "float16", "bfloat16")


@click.command(help=__doc__)
@results.recording
@click.option("--net", default="cpu10", show_default=True)
@click.option("--only", help="layers whose name contains one of these words, parted by commas")
@click.option("--direction", "directions", multiple=True, default=["fwd", "bwd_data", "bwd_weights"])
@click.option("--peer", multiple=True, help="dtypes that PyTorch runs too; its float16 may take minutes")
@click.option("--seconds", default=0.3, show_default=True, help="time a layer and direction")
@click.option("--rounds", default=5, show_default=True, help="samples of each, at least")
@click.option("--fresh", is_flag=True, help="pack weights in each call")
@click.option("--dry", is_flag=True, help="run each once, so that a later run finds all compiled")
@click.option("--json", "path", type=click.Path(path_type=Path), help="write the figures there too")
def main(net, only, directions, peer, seconds, rounds, fresh, dry, path) -> None:
    table = Table(title=net)
    for title in (
        "layer",
        "direction",
        *DTYPES,
        *(f"{dtype}, ratio" for dtype in DTYPES[1:]),
        *map("torch {}".format, peer),
    ):
        table.add_column(title, justify="left" if title in ("layer", "direction") else "right")
    ratios, rows = defaultdict(list), []
    for name, plain, _ in layers(net, only):
        for direction in directions:
            works, chosen = {}, {}
            for dtype in DTYPES:
                for layout in ("nchw", "nhwc"):
                    packed = not fresh and direction != "bwd_weights"
                    problem = plain.replace(direction=direction, dtype=dtype, layout=layout, constant_weights=packed)
                    chosen[f"{dtype} {layout}"], works[f"{dtype} {layout}"] = solver_work(problem, None, None)
                    if dtype in peer:
                        works[f"torch {dtype} {layout}"] = torch_work(problem)
            if dry:
                for each in works.values():
                    each()
                continue
            times = interleaved(works, seconds, rounds)
            best = {
                key: min(times[f"{key} nchw"], times[f"{key} nhwc"]) for key in (*DTYPES, *map("torch {}".format, peer))
            }
            found = {dtype: best["float32"] / best[dtype] for dtype in DTYPES[1:]}
            found |= {f"torch {dtype}": best[f"torch {dtype}"] / best[dtype] for dtype in peer}
            for key, value in found.items():
                ratios[key].append(value)
            table.add_row(
                name, direction, *(f"{best[key]:.2f}" for key in DTYPES), *(f"{each:.2f}" for each in found.values())
            )
            rows.append({"layer": name, "direction": direction, "ms": times, "chosen": chosen})
    rich.get_console().width = 150
    rich.print(table)
    results.keep_table(table)
    for key, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        rich.print(f"{key}: geometric mean {mean:.2f}, least {min(values):.2f}")
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
