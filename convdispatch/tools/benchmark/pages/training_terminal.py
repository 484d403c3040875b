"""A training profile as tables in the terminal."""

from __future__ import annotations

from rich.console import Console

from ....selection.text_table import Column, Table, columns
from ..quiet import busy
from ..training import TrainingReport


def show_training(report: TrainingReport, console: Console) -> None:
    """Print where the time went, and element-wise bandwidth by size."""
    doubt = " (busy machine: not to be trusted)" if report.busy else ""
    if report.busy:
        console.print(busy(report.busy), style="red", highlight=False)
    total = sum(kind.ms for kind in report.kinds) or 1.0
    table = Table(
        Column("operation", "name"),
        *columns("number", "calls", "forward ms", "backward ms", "share %"),
        title=f"{report.net}, a training step at batch {report.mb}, {report.layout}, on {report.device}",
        caption=f"{report.step_ms:.2f} ms a step, {report.images_per_second:,.0f} images/s{doubt}; "
        f"{100 * report.share_beside_convolution:.1f} % beside convolutions and linear maps; "
        f"{report.peak_bytes / 2**20:,.0f} MiB held at most; loss {report.loss[0]:.3f} to {report.loss[1]:.3f}",
    )
    for kind in report.kinds:
        numbers = (f"{kind.forward_ms:.3f}", f"{kind.backward_ms:.3f}", f"{100 * kind.ms / total:.1f}")
        table.add_row(kind.name, str(kind.calls), *numbers)
    console.print(table)
    title = "a + 2 b, bytes read and written a second"
    sizes = Table(*columns("number", "tensor", "GB/s", "copy GB/s", "ratio"), title=title)
    for row in report.bandwidth:
        ratio = f"{row.elementwise / row.copy:.2f}"
        sizes.add_row(_size(row.nbytes), f"{row.elementwise / 1e9:,.1f}", f"{row.copy / 1e9:,.1f}", ratio)
    console.print(sizes)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
