"""Measure the generated matrix product against the device's own multiply-add peak, taken in the same run.

python -m bench gemm                                    # 1024 cubed on the default device, default configuration
python -m bench gemm --size 4096 --configs all          # every configuration, fastest first
python -m bench gemm --shape 64 3136 576 --batch 8 --layout nt --dtype float16 --device nvidia
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time

import click
import ml_dtypes  # noqa: F401 its import makes "bfloat16" a dtype of NumPy's
import numpy as np
import pyopencl as cl
from rich.console import Console
from rich.table import Table

from bench.timer import host_seconds
from convdispatch.api.dtypes import DTYPES
from convdispatch.api.errors import ConvDispatchError
from convdispatch.device import runtime
from convdispatch.device.gemm import Axis, GemmPlan, GemmSpec, Matrix, configs, packed_layout
from convdispatch.device.gemm.configs import cpu_configs, gpu_configs
from convdispatch.measurement.peaks import measure_roof


class Bench:
    """Times work on one in-order queue: samples of several launches, medians of samples."""

    def __init__(self, device: cl.Device, seconds: float) -> None:
        self.device, self.info = device, runtime.device_info(device)
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.seconds = seconds

    def time(self, work) -> tuple[float, float, float]:
        """Median, p20 and p80 of seconds a run, warmed up before."""
        work()
        self.queue.finish()
        once = host_seconds(work, 1, self.queue.finish)
        repeat = max(1, round(0.02 / once))
        host_seconds(work, repeat, self.queue.finish)
        samples = []
        stop = time.perf_counter() + self.seconds
        while len(samples) < 5 or time.perf_counter() < stop:
            samples.append(host_seconds(work, repeat, self.queue.finish))
        return tuple(np.percentile(samples, (50, 20, 80)))

    def peak(self, dtype: str) -> float:
        """Multiply-add operations a second, two a multiply-add, in the accumulation type."""
        return measure_roof(self.device, dtype, matrix=False).flops.rate


def make_spec(m: int, n: int, k: int, batch: int, dtype: str, layout: str, alignment: int) -> GemmSpec:
    """Dense operands; layout has a letter for A, B and optionally C: n as written, t transposed in memory."""
    a = Matrix(Axis(k), Axis(1), Axis(m * k)) if layout[0] == "n" else Matrix(Axis(1), Axis(m), Axis(m * k))
    b = Matrix(Axis(n), Axis(1), Axis(k * n)) if layout[1] == "n" else Matrix(Axis(1), Axis(k), Axis(k * n))
    c = Matrix(Axis(n), Axis(1), Axis(m * n)) if layout[2:3] != "t" else Matrix(Axis(1), Axis(m), Axis(m * n))
    return GemmSpec(m, n, k, batch, dtype, a, b, c, alignment=alignment)


def relative_error(spec: GemmSpec, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """Norm of the error over the norm of the result, against float64, in sampled rows of the last batch."""
    z, rows = spec.batch - 1, np.unique(np.linspace(0, spec.m - 1, min(spec.m, 64)).astype(int))
    p, n = np.arange(spec.k), np.arange(spec.n)

    def gather(data: np.ndarray, matrix: Matrix, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        at = matrix.batch.offset(z) + matrix.row.offset(i)[:, None] + matrix.col.offset(j)[None, :]
        return data[at].astype(np.float64)

    want = gather(a, spec.a, rows, p) @ gather(b, spec.b, p, n)
    return float(np.linalg.norm(gather(c, spec.c, rows, n) - want) / np.linalg.norm(want))


@click.command(context_settings={"max_content_width": 120})
@click.option("--device", default=None, help="Device as convdispatch names it: nvidia, cpu, intel, part of a name.")
@click.option("--size", default=1024, show_default=True, help="m = n = k.")
@click.option("--shape", type=int, nargs=3, default=None, help="M N K instead of --size.")
@click.option("--batch", default=1, show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--layout", default="nn", show_default=True, help="n or t for A, B (and C): t is transposed in memory.")
@click.option("--configs", "which", default="1", show_default=True, help="all, or how many of the first.")
@click.option("--generator", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", show_default=True)
@click.option("--alignment", default=4, show_default=True, help="Elements that all offsets are multiples of.")
@click.option("--packed", default="", help="Operands packed beforehand, not timed: a, b or ab.")
@click.option("--seconds", default=0.5, show_default=True, help="Time spent on each configuration.")
@click.option("--set", "changes", multiple=True, help="Change every configuration: --set kc=256 --set mr=6.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")
def main(device, size, shape, batch, dtype, layout, which, generator, alignment, packed, seconds, changes, as_json):
    """Time, speed, share of the multiply-add peak and error of matrix products."""
    bench = Bench(runtime.find_device(device), seconds)
    m, n, k = shape or (size, size, size)
    spec = make_spec(m, n, k, batch, dtype, layout, alignment)
    found = {"auto": configs, "cpu": cpu_configs, "gpu": gpu_configs}[generator](spec, bench.info)
    chosen = list(found) if which == "all" else list(found)[: int(which)]
    changed = {name: json.loads(value) for name, _, value in (change.partition("=") for change in changes)}
    chosen = [config | changed for config in chosen]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(batch * k * size, dtype=np.float32).astype(dtype) for size in (m, n))
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    peak = bench.peak(dtype)
    rows = []
    for config in chosen:
        try:
            rows.append(measure(bench, spec, config, a, b, flags, packed) | {"config": config})
        except (ConvDispatchError, cl.Error) as error:
            rows.append({"config": config, "failed": str(error).splitlines()[0][:80]})
    if bench.info.type == "cpu":
        peak = statistics.median([peak, bench.peak(dtype), bench.peak(dtype)])  # neighbours come and go: ask again
    else:
        peak = max(peak, bench.peak(dtype))
    report(bench, spec, rows, peak, as_json, layout)


def measure(bench: Bench, spec: GemmSpec, config: dict, a, b, flags, packed: str) -> dict:
    """One configuration's figures."""
    run = dataclasses.replace(spec, a_packed="a" in packed, b_packed="b" in packed)
    begin = time.perf_counter()
    plan = GemmPlan(bench.context, run, config)
    built = time.perf_counter() - begin
    buffers = {"a": cl.Buffer(bench.context, flags, hostbuf=a), "b": cl.Buffer(bench.context, flags, hostbuf=b)}
    for letter in packed:
        memory = cl.Buffer(bench.context, cl.mem_flags.READ_WRITE, packed_layout(run, config, letter).size)
        plan.pack(letter, bench.queue, buffers[letter], memory)
        buffers[letter] = memory
    out = np.zeros(spec.batch * spec.m * spec.n, a.dtype)
    c = cl.Buffer(bench.context, cl.mem_flags.READ_WRITE, out.nbytes)
    workspace = cl.Buffer(bench.context, cl.mem_flags.READ_WRITE, max(1, plan.workspace_size))
    median, p20, p80 = bench.time(lambda: plan.enqueue(bench.queue, buffers["a"], buffers["b"], c, workspace))
    cl.enqueue_copy(bench.queue, out, c)
    times = {"ms": median * 1e3, "p20": p20 * 1e3, "p80": p80 * 1e3, "gflops": spec.flops / median / 1e9}
    return times | {"error": relative_error(spec, a, b, out), "build": built, "workspace": plan.workspace_size}


def report(bench: Bench, spec: GemmSpec, rows: list[dict], peak: float, as_json: bool, layout: str) -> None:
    """The table, fastest first; the default configuration is marked."""
    rows[0]["default"] = True
    rows.sort(key=lambda row: row.get("ms", float("inf")))
    if as_json:
        for row in rows:
            print(json.dumps(row | {"peak_gflops": peak / 1e9, "device": str(bench.info)}))
        return
    sizes = f"{spec.m} x {spec.n} x {spec.k}" + (f", batch {spec.batch}" if spec.batch > 1 else "")
    table = Table(
        title=f"{spec.dtype} {sizes} {layout} on {bench.info}; multiply-add peak {peak / 1e9:,.0f} GFLOP/s", expand=True
    )
    for column in ("ms", "p20", "p80", "GFLOP/s", "of peak", "error", "build s", "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("configuration (* default)", ratio=1, overflow="fold")
    for row in rows:
        text = " ".join(f"{name}={value}" for name, value in row["config"].items())
        text = ("* " if row.get("default") else "") + text
        if "failed" in row:
            table.add_row(*["-"] * 8, f"{text}: {row['failed']}")
            continue
        share = 1e9 * row["gflops"] / peak
        table.add_row(
            *(f"{row[name]:.3f}" for name in ("ms", "p20", "p80")),
            f"{row['gflops']:,.0f}", f"{share:.0%}", f"{row['error']:.1e}", f"{row['build']:.2f}",
            f"{row['workspace'] / 2**20:.1f}", text,
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
