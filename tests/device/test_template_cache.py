"""Rendered texts are kept, so what templates are given must be values: no local functions, the same in each process."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from convdispatch_implicitgemm.gpu import choice as tiled
from convdispatch_implicitgemm.gpu.product import Product
from convdispatch_implicitgemm.gpu.solver import Form
from convdispatch_implicitgemm.gpu.solver import product_text as tiled_text
from convdispatch_nvidia.packed import choice as packed
from convdispatch_nvidia.packed.tiling import Tiling
from convdispatch_winograd.gpu.work import Printer

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.device.cache import artifact_store, keys
from convdispatch.device.matrix_tiles.product.form import ProductForm
from convdispatch.device.matrix_tiles.product.plan import product_text as packed_text
from convdispatch.device.programs import kernels
from convdispatch.device.programs.template_cache import Subject

HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132, local_mem_size=48 << 10,
                    max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64))  # fmt: skip
PROBLEM = ConvProblem.parse("fwd_f32_mb1ic64ih56iw56oc64kh3ph1+constant")


def _packed(engine: str) -> str:
    form = ProductForm.of(Tiling(PROBLEM, next(iter(packed.choices(PROBLEM, engine, 132)))))
    return packed_text.__wrapped__(form)  # without its own cache


def _tiled() -> str:
    return tiled_text.__wrapped__(Form.of(Product(PROBLEM, tiled.choices(PROBLEM, HOPPER)[0])))  # without its own cache


def _winograd() -> str:
    matrix = ((1, 2), (0, 1))
    template = "${program(matrix, ['a', 'b'], ['c', 'd'], 'float')}${program(matrix, ['c', 'd'], ['e', 'f'], 'float')}"
    return kernels._rendered("convdispatch_winograd.gpu", template, {"program": Printer("float"), "matrix": matrix})


CASES = {"wgmma": lambda: _packed("wgmma"), "mma": lambda: _packed("mma"), "tiled": _tiled, "winograd": _winograd}


@pytest.mark.parametrize("what", CASES)
def test_a_second_process_renders_nothing(what, tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    if what == "winograd":
        monkeypatch.setattr(kernels, "_read", lambda package, file: file)
    first = CASES[what]()
    assert list(tmp_path.glob("*.texts"))
    monkeypatch.setattr(kernels, "_template", lambda *given: pytest.fail(f"{given} was rendered again"))
    assert CASES[what]() == first


@pytest.mark.parametrize("what", CASES)
def test_what_is_kept_follows_from_what_is_given(what, tmp_path, monkeypatch):
    """Two renderings without files are equal: nothing counts on across them, and no key is without an answer."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    if what == "winograd":
        monkeypatch.setattr(kernels, "_read", lambda package, file: file)
        kernels._template.cache_clear()
    keys, real = [], Subject.text_key
    monkeypatch.setattr(Subject, "text_key", lambda self: keys.append(real(self)) or keys[-1])
    first = CASES[what]()
    half = len(keys)
    assert CASES[what]() == first
    assert None not in keys
    assert keys[:half] == keys[half:]


_KEYS = """
from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.device.programs.template_cache import Subject
from convdispatch_nvidia.packed import choice
from convdispatch_nvidia.packed.tiling import Tiling
problem = ConvProblem.parse("fwd_f32_mb1ic64ih56iw56oc64kh3ph1+bias+relu")
device = DeviceInfo("a", "b", "gpu", "sm_90", extensions=frozenset("abcdefgh"))
tiling = Tiling(problem, next(iter(choice.choices(problem, "wgmma", 132))))
hash(problem), tiling.slices, problem.x_shape
more = [device, (problem, {"x": tiling})]
for values in ({"problem": problem}, {"device": device}, {"tiling": tiling}, {"more": more}):
    subject = Subject("convdispatch_nvidia", "t", values)
    print(subject.text_key(), subject.artifact_key())
"""


def test_what_other_machines_call_a_text_is_worked_out_where_one_may_have_it(device, tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(Subject, "artifact_key", lambda subject: "a key")
    holding = artifact_store.Gathered(keys.identity(device))
    holding.tables["decisions"]["a problem"] = {"solver": "a"}
    artifact_store.put_in_force(holding)
    try:
        text = CASES["tiled"]()
        holding.tables["texts"]["a key"] = "as it was there"
        assert CASES["tiled"]().endswith("as it was there")
        holding.tables["texts"].clear()
        monkeypatch.setattr(Subject, "artifact_key", lambda subject: pytest.fail("nobody has texts"))
        assert CASES["tiled"]() == text
        with artifact_store.gathering(device) as gathered:
            monkeypatch.setattr(Subject, "artifact_key", lambda subject: "a key")
            assert CASES["tiled"]() == text
        assert list(gathered.tables["texts"]) == ["a key"]
    finally:
        artifact_store.take_out_of_force(holding)


def test_each_process_has_the_same_keys():
    """A problem keeps its hash, which is another in each process, and sets come in another order."""
    said = [
        subprocess.run(
            [sys.executable, "-c", _KEYS], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        for seed in ("1", "2")
    ]
    assert said[0].returncode == 0, said[0].stderr
    assert said[0].stdout == said[1].stdout
    assert len(set(said[0].stdout.split())) == 8


def test_what_an_object_has_worked_out_does_not_count():
    fresh, used = ConvProblem.parse(str(PROBLEM)), ConvProblem.parse(str(PROBLEM))
    assert hash(used)
    assert used.x_shape
    assert "x_shape" not in vars(fresh)
    assert key(fresh) == key(used)
    assert key(PROBLEM.replace(bias=True)) != key(fresh)


@dataclasses.dataclass(frozen=True)
class Held:
    """Frozen, whatever it holds."""

    value: object


def test_what_an_object_was_pickled_as_is_its_own():
    """It is remembered by the object, not by what equals it, and not where what it holds may change."""
    assert key(Held(1)) != key(Held(1.0))
    assert key(Held(1)) == key(Held(1))
    changing = Held([1])
    before = key(changing)
    changing.value.append(2)
    assert key(changing) != before


def key(value):
    return Subject("convdispatch_nvidia", "t", {"p": value}).text_key()
