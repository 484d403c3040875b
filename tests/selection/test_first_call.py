"""What a first call does: which modules it imports, what it renders and compiles, and that it says where time goes."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import types

import numpy as np
import processors
import pytest

from convdispatch import inference
from convdispatch.api import ConvProblem, Declared, Solver, kernel_text
from convdispatch.api.cpu import transposed
from convdispatch.device import runtime, startup_profile
from convdispatch.device.cache import keys, store
from convdispatch.device.garbage import collection_put_off
from convdispatch.device.programs import kernels
from convdispatch.device.programs.template_cache import Subject
from convdispatch.models import catalogue
from convdispatch.selection import dispatch
from convdispatch.selection.plugins.loader import plugins

PROBLEM = ConvProblem.parse("mb1ic4ih5oc4kh3")
UNNEEDED = {"statistics", "secrets", "difflib", "concurrent.futures", "convdispatch.device.cuda.ptx"}
"""Modules that take some milliseconds to import and that a call by stored decisions and binaries does not use."""
_CHILD = """
import json, sys
import numpy as np
import convdispatch
x, w = np.ones((1, 8, 12, 12), np.float32), np.ones((16, 8, 3, 3), np.float32)
convdispatch.conv(x, w, padding=1)
from convdispatch.device import runtime
names = list(sys.modules)
print(json.dumps([runtime.default_device().type == 2, names]))
"""


def child(folder) -> tuple[bool, set[str]]:
    # Records of its own too: what another test measured would be the choice here, and import its plugin.
    environment = {**os.environ, "CONVDISPATCH_KERNEL_CACHE": str(folder), "CONVDISPATCH_DB": f"{folder}/records"}
    done = subprocess.run([sys.executable, "-c", _CHILD], env=environment, capture_output=True, text=True, check=True)
    is_cpu, names = json.loads(done.stdout.splitlines()[-1])
    return is_cpu, set(names)


def test_a_first_call_imports_what_the_device_needs_and_a_second_process_renders_nothing(tmp_path, queue):
    first, (is_cpu, second) = child(tmp_path)[1], child(tmp_path)
    assert "mako.template" in first, "the first process has nothing to read"
    assert "mako.template" not in second
    assert not second & UNNEEDED
    if is_cpu:
        solvers = {name for name in second if name.startswith("convdispatch_")}
        assert not {name for name in solvers if ".gpu" in name or "nvidia." in name or "cudnn." in name}
        assert not {name for name in solvers if "onednn." in name}, "what predicts nothing is not asked"


def test_a_declaration_says_what_the_solver_says(device):
    info, declared = runtime.device_info(device), 0
    for solver in plugins().solvers.values():
        if not isinstance(solver, Declared):
            continue
        declared += 1
        assert solver.predicts == (type(solver.solver).cost is not Solver.cost), solver.name
        for attribute in ("name", "fuses", "deterministic", "exact", "predicts"):
            declares = getattr(solver, attribute)
            assert getattr(solver.solver, attribute) == declares, (solver.name, attribute)
            assert vars(type(solver.solver)).get(attribute, declares) == declares, (solver.name, attribute)
    assert declared > 20
    assert {s.name for s in plugins().solvers.values() if s.serves(info) is not None}, "some serve other devices only"


def test_a_device_that_is_not_served_imports_nothing(device):
    made = Declared("no.such.module", "Nothing", name="nothing", serves=lambda device: "another device only")
    info = runtime.device_info(device)
    assert made.rejects(PROBLEM, info) == "another device only"
    other = Declared("no.such.module", "Nothing", name="nothing", dtypes={"fwd": {"float64"}})
    assert other.rejects(PROBLEM, info) == "float64 only, got float32"
    with pytest.raises(ModuleNotFoundError):
        Declared("no.such.module", "Nothing", name="nothing").rejects(PROBLEM, info)


# --- rendered text ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def renderings(monkeypatch):
    """Templates that were rendered."""
    seen, real = [], kernels._template

    def template(package, file):
        seen.append(file)
        return real(package, file)

    monkeypatch.setattr(kernels, "_template", template)
    return seen


PACK = {
    "transposed": transposed,
    "elementwise": False,
    "narrow": 0,
    "lanes": 8,
    "width": 8,
    "accsize": 4,
    "k_unit": True,
    "k_run": 0,
    "vectors": False,
    "run": 0,
}


def test_text_is_rendered_once_for_its_values(folder, renderings):
    texts = [kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK) for _ in range(3)]
    assert len(renderings) == 1
    assert len(set(texts)) == 1
    other = kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK | {"lanes": 16})
    assert len(renderings) == 2
    assert other != texts[0]


def test_changed_sources_render_anew(folder, renderings, monkeypatch):
    kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK)
    monkeypatch.setattr(keys, "stamp", lambda home: f"{home} as edited")
    kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK)
    assert len(renderings) == 2


def test_damaged_text_is_rendered_anew(folder, renderings):
    whole = kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK)
    (file,) = folder.glob("*.texts")
    for content in (b"", file.read_bytes()[:-1], b"x" + file.read_bytes()):
        file.write_bytes(content)
        assert kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK) == whole
    no_text = store.Table("texts", "", store.BYTES)
    no_text.put(file.stem, b"no zlib")
    assert no_text.get(file.stem) == b"no zlib"
    assert kernel_text("convdispatch.device.gemm", "pack.cl.mako", **PACK) == whole
    assert len(renderings) == 5


def test_values_that_cannot_be_told_are_rendered_each_time(folder, renderings):
    assert Subject("p", "template", {"f": lambda: 1}).text_key() is None
    cycle = []
    cycle.append(cycle)
    assert Subject("p", "template", {"c": cycle}).text_key() is None
    assert Subject("p", "template", {"c": 1}).text_key() != Subject("p", "template", {"c": 2}).text_key()


# --- where time goes -------------------------------------------------------------------------------------------------


def test_phases_count_once_and_by_layer(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(startup_profile, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    with startup_profile.noting() as notes, startup_profile.layer("outer"):
        with startup_profile.phase("plan"):
            clock[0] += 2
            with startup_profile.layer("inner"), startup_profile.phase("compile"):
                clock[0] += 5
        with startup_profile.phase("plan"):
            pass
    assert set(notes.spent) == {("outer", "plan"), ("outer", "compile")}
    plan, compiled = notes.of("plan"), notes.of("compile")
    assert (plan.count, compiled.count) == (2, 1)
    assert (plan.seconds, compiled.seconds) == (2, 5), "the compiler's time is not the plan's too"
    with startup_profile.phase("plan"):
        pass
    assert notes.of("plan").count == 2, "nothing is noted after the block"


def test_a_net_compiles_few_programs(queue, monkeypatch):
    """ResNet-50 in one layout: 54 convolutions of 25 kinds, and packing of weights, whose sizes are arguments."""
    if runtime.device_info(queue.device).type != "cpu":
        pytest.skip("counted for CPUs")
    asked, real = set(), kernels._compile
    monkeypatch.setattr(kernels, "_compile", lambda c, text, o: asked.add(text) or real(c, text, o))
    dispatch.forget()
    kernels._programs.drop()
    with startup_profile.noting() as notes:
        net = catalogue.create("resnet50", queue=queue)
        net = inference.build(net, (1, 3, 64, 64), layout="nchw", queue=queue)
    assert len(net.layers) > 50
    by = {layer.solver for layer in net.layers}
    # Matrix registers' programs take all sizes as arguments; beside others' they bring weights of one more form.
    most = 27 if by == {"amx.tiles"} else 45 if "amx.tiles" in by else 38
    assert len(asked) <= most, "a program for each kind of convolution, and few for what is packed"
    assert not any("pool_backward" in text for text in asked if "pool_rows" not in text), "no gradients are asked for"
    assert notes.of("compile").count + notes.of("load").count == len(asked)
    if not processors.absent:  # what is refused when it is planned is selected again
        assert notes.of("selection").count == len({layer.problem for layer in net.layers if layer.problem})
    where_they_lie = sum(layer.solver == "implicitgemm.skinny" for layer in net.layers)
    assert notes.of("packing").count >= 53 - where_they_lie
    np.testing.assert_array_less(0, notes.of("packing").seconds)


def test_garbage_is_collected_after_a_start(monkeypatch):
    assert gc.isenabled()
    with collection_put_off():
        with pytest.raises(RuntimeError, match="inside"), collection_put_off():
            raise RuntimeError("inside")
        assert not gc.isenabled(), "the outer block goes on"
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_put_off():
            pass
        assert not gc.isenabled(), "somebody else's choice"
    finally:
        gc.enable()


def test_what_a_start_made_is_old_after_it():
    """No collection of the young walks it; a full one finds what of it is garbage, and what is frozen stays so."""
    text = """if True:
        import gc, weakref
        from convdispatch.device.garbage import collection_put_off
        class Node: pass
        def old(): return sum(type(each) is Node for each in gc.get_objects(generation=2))
        with collection_put_off():
            made = [Node() for _ in range(20_000)]
            made[0].itself = made[0]
            garbage = weakref.ref(made.pop(0))
            before = old()
        print(before, old() >= 19_999, gc.isenabled())
        gc.collect()
        print(garbage() is None)
        gc.freeze()
        with collection_put_off():
            more = [Node() for _ in range(20_000)]
        print(gc.get_freeze_count() > 0)
    """
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "True", "True", "True", "True"]


def test_pytorchs_door_imports_little():
    """What only searches, explanations and other doors need comes with them."""
    pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    text = """if True:
        import gc, sys
        import convdispatch.torch
        late = ("elementwise", "measurement.search", "nn.functional", "nn.layers", "selection.explanation", "tensor")
        print([name for name in late if f"convdispatch.{name}" in sys.modules], gc.isenabled())
    """
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] True"
