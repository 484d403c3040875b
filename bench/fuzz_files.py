"""Fuzzes every reader of files for as long as one likes: bytes flipped, cut, doubled and joined, and permissions taken.

    python bench/fuzz_files.py --minutes 10                # each reader
    python bench/fuzz_files.py --minutes 10 --reader registry --seed 7

Whatever comes of a file is a value, a warning of this package or one of its errors, in at most half a minute on a busy
machine: anything else is printed with the reader, the seed and the bytes, and the exit status is 1.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import click

from convdispatch.api.errors import ConvDispatchError
from convdispatch.api.problem import ConvProblem
from convdispatch.device import rates, runtime
from convdispatch.measurement import grammar
from convdispatch.measurement.conformance import outcome
from convdispatch.selection.choice import lockfile
from convdispatch.selection.planpack import reading
from convdispatch.selection.plugins import registry, verdicts
from convdispatch.selection.records import packs
from convdispatch.selection.records.perfdb import PerfDB
from convdispatch.tools import replay
from convdispatch.tools.benchmark import report

SLOW_S = 30.0
PROBLEM = "fwd_f32_mb1ic3ih8iw8oc4kh3kw3"
REGISTRY = b"""version: 1
include: packaged
block: [acme]
families: {fast: ["amx.*", im2col]}
rules:
  - when: {direction: fwd, kh: 3, ic: ">=32", dtype: [float32, float16], depthwise: false}
    prefer: [fast, winograd.*]
errata:
  - {solver: fft.*, when: {vendor: intel}, reason: "it is wrong"}
"""
RECORD = {
    "schema": 1, "problem": PROBLEM, "device": "cpu-a-1cu", "solver": "im2col", "config": {"a": 1}, "median_ms": 1.0,
    "ci_ms": [0.9, 1.1], "p20_ms": 0.9, "p80_ms": 1.1, "count": 9, "provenance": {},
}  # fmt: skip
HELD = {"version": "1 ab", "what": "find: wrong", "asked": PROBLEM}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _verdicts(path: Path) -> None:
    os.environ["CONVDISPATCH_DB"] = str(path.parent)
    path.rename(path.parent / "verdicts.json")
    verdicts.refresh()
    verdicts.against(ConvProblem.parse(PROBLEM), runtime.device_info(runtime.default_device()), "im2col", "1 ab")


def _records(path: Path) -> None:
    folder = path.parent / "db" / "cpu-a-1cu"
    folder.mkdir(parents=True, exist_ok=True)
    path.rename(folder / "records.json")
    PerfDB([path.parent / "db"]).all("cpu-a-1cu")


def _rates(path: Path) -> None:
    os.environ["CONVDISPATCH_RATES"] = str(path.parent)
    info = runtime.device_info(runtime.default_device())
    path.rename(rates.place(info))
    rates.rates.cache_clear()
    rates.rates(info)


def _onnx(path: Path) -> None:
    from convdispatch.onnx import load

    load(path)


def _model() -> bytes:
    from onnx import TensorProto, helper

    shape = [1, 3, 8, 8]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    w = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 3, 3], [0.5] * 81)
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER")
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [w])).SerializeToString()


READERS: dict[str, tuple[Callable[[], bytes], Callable[[Path], object]]] = {
    "registry": (lambda: REGISTRY, lambda path: registry.parse(registry.read_text(path), "registry.yaml")),
    "lock": (
        lambda: _json({"schema": 1, "problems": {PROBLEM: {"solver": "im2col", "config": {}}}}),
        lockfile.read,
    ),
    "pack": (
        lambda: _json({"schema": 1, "records": [RECORD]}),
        lambda path: packs.import_pack(PerfDB([path.parent / "db"]), path),
    ),
    "records": (lambda: _json({"schema": 1, "records": [RECORD]}), _records),
    "verdicts": (
        lambda: _json({"imports": {}, "trusted": {}, "answers": {}, "solvers": {f"{PROBLEM} a b im2col": HELD}}),
        _verdicts,
    ),
    "rates": (lambda: _json({"flops": 1e11, "bandwidth": 1e10, "launch": 1e-5}), _rates),
    "plan_pack": (lambda: b"PK\x03\x04" + bytes(60) + b"PK\x05\x06" + bytes(18), reading.read),
    "problems": (
        lambda: f'{PROBLEM}+relu  a *2\n--dir=BWD_D --dt=f32,f16 --mb=2,3 g1mb1ic3ih8oc4oh6kh3n"x*3"\n'.encode(),
        lambda path: list(grammar.read_file(path)),
    ),
    "trace": (lambda: f"convdispatch,1,{PROBLEM},im2col,Some CPU,0,12.5,80.1\n".encode() * 3, replay.read_trace),
    "bench": (lambda: _json([{"schema": 9}]), report.load_all),
    "verify": (lambda: _json([{"schema": outcome.SCHEMA, "outcomes": []}]), outcome.load_all),
    "onnx": (_model, _onnx),
}


def mutate(source: random.Random, data: bytes) -> bytes:
    """Some bytes flipped, and perhaps cut, doubled, filled or joined with itself."""
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4, 16))):
        at = source.randrange(len(out) + 1)
        kind = source.random()
        if kind < 0.4 and at < len(out):
            out[at] ^= 1 << source.randrange(8)
        elif kind < 0.55:
            out[at:at] = bytes(source.choice((b"[", b"{", b'"', b"9", b"-", b"\0", b"\xff", b"&a ", b"*a", b": "))) * (
                source.choice((1, 3, 40, 3000))
            )
        elif kind < 0.7:
            del out[at : at + source.randint(1, 30)]
        elif kind < 0.85:
            end = at + source.randint(1, 60)
            out[at:at] = out[at:end] * source.choice((1, 2, 200))
        else:
            out[at : at + 8] = source.randbytes(8)
    return bytes(out)


def attempt(name: str, data: bytes, mode: int) -> str | None:
    """What is wrong with how a reader took it, or None."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "file.onnx" if name == "onnx" else "file")
        path.write_bytes(data)
        path.chmod(mode)
        try:
            READERS[name][1](path)
        except ConvDispatchError as error:
            if len(str(error)) > 5000:
                return f"a message of {len(str(error))} characters"
        except BaseException:
            return traceback.format_exc()
    spent = time.monotonic() - began
    return f"it took {spent:.1f} s" if spent > SLOW_S else None


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="For each reader.")
@click.option("--reader", "names", multiple=True, type=click.Choice(list(READERS)))
@click.option("--seed", default=0, show_default=True)
def main(minutes: float, names: tuple[str, ...], seed: int) -> None:
    """Run; see the module's text."""
    found = 0
    for name in names or READERS:
        source, count, end = random.Random(seed), 0, time.monotonic() + 60 * minutes
        whole = READERS[name][0]()
        while time.monotonic() < end:
            data = mutate(source, whole) if count else whole
            wrong = attempt(name, data, source.choice((0o600, 0o600, 0o600, 0o000, 0o200)))
            count += 1
            if wrong:
                found += 1
                print(f"{name}, file {count} of seed {seed}: {wrong}\n{data[:2000]!r}", flush=True)
        print(f"{name}: {count} files", flush=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
