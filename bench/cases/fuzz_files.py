"""Fuzzes every reader of files for as long as one likes: bytes flipped, cut, doubled and joined, values of JSON put in
each other's places, and permissions taken.

    python -m bench fuzz_files --minutes 10                # each reader
    python -m bench fuzz_files --minutes 10 --reader registry --seed 7
    python -m bench fuzz_files --minutes 10 --state fuzz.json   # goes on where that file says; the readers take turns
    setpriv --reuid 65534 --clear-groups python -m bench fuzz_files   # as root, who may read what nobody may

Whatever comes of a file is a value, a warning of this package or one of its
errors, in at most half a minute of the processor: anything else is printed with the reader, the seed and the bytes,
and the exit status is 1.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml

from convdispatch.api import settings
from convdispatch.api.errors import ConvDispatchError
from convdispatch.api.policy import Policy
from convdispatch.api.problem import ConvProblem
from convdispatch.device import rates, runtime
from convdispatch.device.cache import keys, store
from convdispatch.device.opencl import icd
from convdispatch.inference import choice_cache
from convdispatch.measurement import grammar
from convdispatch.selection import decision_store
from convdispatch.selection.choice import lockfile
from convdispatch.selection.planpack import reading
from convdispatch.selection.plugins import registry, verdicts
from convdispatch.selection.records import packs
from convdispatch.selection.records.perfdb import PerfDB

SLOW_S = 30.0
DECISION = {
    "solver": "im2col", "config": {"tile": 8}, "source": "predicted", "math": "float32",
    "layout": None, "votes": 2, "noise": 0.5, "recalls": 0,
}  # fmt: skip
"""A decision about a problem, and about a net."""
PROBLEM = "fwd_f32_mb1ic3ih8iw8oc4kh3kw3"
REGISTRY = b"""version: 1
include: packaged
block: [acme]
families: {fast: ["amx.*", im2col]}
rules:
  - when: {direction: fwd, kh: 3, ic: ">=32", dtype: [float32, float16], depthwise: false}
    prefer: [fast, winograd.*]
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
    problem, info = ConvProblem.parse(PROBLEM), runtime.device_info(runtime.default_device())
    data = path.read_bytes()
    answers = [keys.key_of(*what, "bad", "1 ab") for what in (("import",), ("answers",))]
    for table, key in ((verdicts.VERDICTS, "ab"), *((verdicts.ANSWERS, key) for key in answers)):
        store.Table(table.name, "", store.BYTES, table.folder).put(key, data)
    verdicts.refresh()
    verdicts.against(problem, info, "im2col", "1 ab")
    list(verdicts.seen(info))
    verdicts.import_fault("bad", "1 ab")
    verdicts.note_answers("bad", "1 ab", verdicts.answers("bad", "1 ab"))


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


def _put(path: Path, table: store.Table, *names: str) -> None:
    """The file's bytes become values of a table, as somebody who may write the folder could make them."""
    os.environ["CONVDISPATCH_KERNEL_CACHE"] = str(path.parent)
    data = path.read_bytes()
    decision_store.forget()
    store.TRIALS.forget()
    for name in names:
        store.Table(table.name, "", store.BYTES).put(name, data)


def _decisions(path: Path) -> None:
    """Whatever a store holds, a problem is ranked where that means nothing, and forms are timed."""
    info, problem = runtime.device_info(runtime.default_device()), ConvProblem.parse(PROBLEM)
    os.environ["CONVDISPATCH_KERNEL_CACHE"] = str(path.parent)
    places = [decision_store.key(info, name) for name in (PROBLEM, "ab")]
    _put(path, store.DECISIONS, *places)
    _put(path, store.FORMS, *places)
    decision_store.choices(problem, info, Policy())
    choice_cache.load(places[1])


def _trials(path: Path) -> None:
    key = keys.key_of("vendor library", icd._file_state("libfuzz.so"))
    _put(path, store.TRIALS, key)
    icd.how_it_ends.__wrapped__("libfuzz.so")
    assert isinstance(store.TRIALS.get(key)["fault"], str)


def _stored(path: Path) -> None:
    os.environ["CONVDISPATCH_KERNEL_CACHE"] = str(path.parent)
    path.rename(path.parent / "ab.programs")
    store.PROGRAMS.get("ab")
    list(store.PROGRAMS.entries())


def _store_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder, settings.changed({"CONVDISPATCH_KERNEL_CACHE": folder}):
        store.PROGRAMS.put("ab", b"code", "a kernel")
        return (Path(folder) / "ab.programs").read_bytes()


def _plan_pack() -> bytes:
    decisions = {PROBLEM: {"solver": "im2col", "config": {"a": 1}}}
    tables = {"decisions": decisions, "forms": {"ab": {"layout": None}}, "plugins": {"im2col": "ab"}}
    members = {"programs": {"k": "programs/0.bin"}, "weights": {"w": "weights/0.bin", "v": ""}}
    return zipped({"plan pack": 1, "device": {"name": "a CPU", "driver": "1"}, **tables, **members})


def zipped(manifest: object) -> bytes:
    """A plan pack of this manifest."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for name, content in (
            ("programs/0.bin", b"code" * 9),
            ("weights/0.bin", bytes(64)),
            ("texts.json", b'{"a":"b"}'),
        ):
            out.writestr(zipfile.ZipInfo(name), content)
        out.writestr(zipfile.ZipInfo("manifest.json"), json.dumps(manifest))
    return file.getvalue()


def _contents(path: Path) -> None:
    found = reading.read(path)
    for member in found.weights:
        found.content(member)


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
        lambda: _json({**HELD, "of": f"{PROBLEM} a b im2col", "how": "", "faults": {"bad.solver": "its cost() hangs"}}),
        _verdicts,
    ),
    "rates": (lambda: _json({"flops": 1e11, "bandwidth": 1e10, "launch": 1e-5}), _rates),
    "plan_pack": (_plan_pack, _contents),
    "problems": (
        lambda: f'{PROBLEM}+relu  a *2\n--dir=BWD_D --dt=f32,f16 --mb=2,3 g1mb1ic3ih8oc4oh6kh3n"x*3"\n'.encode(),
        lambda path: list(grammar.read_file(path)),
    ),
    "trace": (
        lambda: f"convdispatch,1,{PROBLEM},im2col,Some CPU,0,12.5,80.1\n".encode() * 3,
        lambda path: list(grammar.read_file(path)),
    ),
    "onnx": (_model, _onnx),
    "decisions": (lambda: _json(DECISION), _decisions),
    "trials": (lambda: _json({"fault": "it hangs"}), _trials),
    "icd": (lambda: b"/usr/lib/libacme.so\n", icd._library),
    "store": (_store_file, _stored),
}


HOSTILE = (
    None, True, 0, -1, 1, 1e308, 5e-324, -0.0, float("nan"), float("inf"), 10**39, 10**400, 2**63, "", "x" * 3000, "\0",
    "\ud800", "\x1b[2J", "1", "nan", "../../x", "{a}", "*", [], {}, [[]], [None], [0] * 500, {"": ""}, {"a": {"a": 1}},
)  # fmt: skip
"""Values that stand in the places of others."""


def swapped(source: random.Random, value: Any) -> Any:
    """JSON's value with one of its parts, at any depth, taken out, doubled, another's or under another key."""
    value = copy.deepcopy(value)
    inside = value
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            return source.choice(HOSTILE)
        key = source.choice(keys)
        below = inside[key]
        if isinstance(below, (dict, list)) and below and source.random() < 0.8:
            inside = below
            continue
        kind = source.random()
        if kind < 0.15:
            del inside[key]
        elif kind < 0.25 and isinstance(inside, dict):
            inside[source.choice(("", "x", "schema", key + key, "\0"))] = inside.pop(key)
        elif kind < 0.3 and isinstance(inside, list):
            inside.extend([below] * 50)
        else:
            inside[key] = source.choice(HOSTILE)
        return value


def _structure(data: bytes) -> Any:
    """The values of JSON or YAML; None where the bytes are neither."""
    try:
        value = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError):
        return None
    return value if isinstance(value, (dict, list)) and value else None


def mutate(source: random.Random, data: bytes) -> bytes:
    """Some values swapped, or some bytes flipped, and perhaps cut, doubled, filled or joined with itself."""
    if source.random() < 0.5:
        wrap: Callable[[object], bytes] = _json
        value = _structure(data)
        if data.startswith(b"PK"):
            wrap, value = zipped, json.loads(zipfile.ZipFile(io.BytesIO(data)).read("manifest.json"))
        if value:
            for _ in range(source.choice((1, 1, 2, 3))):
                value = swapped(source, value) if isinstance(value, (dict, list)) and value else value
            return wrap(value)
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
    began = time.process_time()  # what stops the process, or takes its processor, is not the reader's
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
    spent = time.process_time() - began
    return f"it took {spent:.1f} s of the processor" if spent > SLOW_S else None


SLICE_S = 30.0
"""A reader's turn."""


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="For each reader.")
@click.option("--reader", "names", multiple=True, type=click.Choice(list(READERS)))
@click.option("--seed", default=0, show_default=True)
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False), help="Go on where it says, and keep it.")
def main(minutes: float, names: tuple[str, ...], seed: int, state: Path | None) -> None:
    """Run; see the module's text."""
    spent: dict[str, dict[str, float]] = {}
    if state is not None and state.exists():
        spent = json.loads(state.read_text(encoding="utf-8"))
    left = list(names or READERS)
    for name in left:
        spent.setdefault(name, {"seconds": 0.0, "files": 0, "found": 0})
    while left:
        for name in list(left):
            _turn(name, seed, spent[name], min(SLICE_S, 60 * minutes - spent[name]["seconds"]))
            if spent[name]["seconds"] >= 60 * minutes:
                left.remove(name)
                print(f"{name}: {spent[name]['files']} files, {spent[name]['found']} findings", flush=True)
            if state is not None:
                state.write_text(json.dumps(spent, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(each["found"] for each in spent.values()) else 0)


def _turn(name: str, seed: int, spent: dict[str, float], seconds: float) -> None:
    """So many seconds of a reader; each file follows from the seed and its number."""
    whole, began = READERS[name][0](), time.monotonic()
    while time.monotonic() - began < seconds:
        source = random.Random(f"{seed} {name} {spent['files']}")
        data = mutate(source, whole) if spent["files"] else whole
        wrong = attempt(name, data, source.choice((0o600, 0o600, 0o600, 0o000, 0o200)))
        spent["files"] += 1
        if wrong:
            spent["found"] += 1
            print(f"{name}, file {spent['files']} of seed {seed}: {wrong}\n{data[:2000]!r}", flush=True)
    spent["seconds"] += max(0.0, time.monotonic() - began)


if __name__ == "__main__":
    main()
