"""Machine code of PTX: assembled once, kept on disk and in packs, and never a reason to fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_cuda import Driver, Program

from convdispatch.device.cache import artifact_store
from convdispatch.device.cuda import machine_code, modules
from convdispatch.device.places.stream import Unlaunchable
from convdispatch.device.programs import ptx_program

PTX = b""".version 8.3
.target sm_90, texmode_independent
.visible .entry scale(.param .u64 .ptr .global .align 4 x, .param .u32 n) .reqntid 32, 1, 1 { ret; }
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(modules, "_modules", {})
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "kernels"))


def test_it_is_assembled_once_and_loaded_from_disk_then(monkeypatch):
    first, second = Driver(), Driver()
    modules._module(first, Program(PTX))
    assert len(first.assembled) == 1
    assert b"griddepcontrol.wait" in first.assembled[0]
    assert first.loaded[0].startswith(b"\x7fELF")
    monkeypatch.setattr(modules, "_modules", {})
    assert modules._module(second, Program(PTX)).form.overlaps, "its kernels may overlap"
    assert second.assembled == []
    assert second.loaded == first.loaded


def test_the_loader_assembles_what_the_linker_would_ignore():
    """``setmaxnreg`` counts in a whole program alone."""
    driver, text = Driver(), PTX.replace(b"ret;", b"setmaxnreg.inc.sync.aligned.u32 232; ret;")
    module = modules.load(driver, text)
    assert driver.assembled == []
    assert [each.rstrip(b"\0") for each in driver.loaded] == [module.form.text.encode()]


def kernel_of(groups=1):
    """The program's kernel, of so many groups of 32 work items."""
    return SimpleNamespace(name="scale", program=Program(PTX), global_size=(32, groups), local_size=(32, 1))


@pytest.mark.parametrize("groups", [1, 70_000])
def test_a_child_assembles_for_its_parent_and_loads_nothing(groups, monkeypatch):
    """A parent that launches the kernel takes the machine code from disk, in one row where it has too many groups."""
    child, parent = Driver(), Driver()
    modules.assemble(child, kernel_of(groups))
    assert len(child.assembled) == 1
    assert child.loaded == []
    monkeypatch.setattr(modules, "_modules", {})
    kernel = kernel_of(groups)
    modules._module(parent, kernel.program, modules._row(kernel, modules._sizes(kernel)[0]))
    assert parent.assembled == []
    assert parent.loaded[0].startswith(b"\x7fELF")


def test_a_child_loads_what_the_linker_refuses(monkeypatch):
    """So that the driver's own cache has it."""
    child = Driver(failing=("cuLinkCreate_v2",))
    modules.assemble(child, kernel_of())
    assert child.loaded[-1].startswith(b".version")


@pytest.mark.parametrize("change", ["driver", "damage"])
def test_another_driver_or_damage_assembles_anew(change, monkeypatch, tmp_path):
    modules._module(Driver(), Program(PTX))
    monkeypatch.setattr(modules, "_modules", {})
    other = Driver(version=13010) if change == "driver" else Driver()
    if change == "damage":
        (path,) = (tmp_path / "kernels").glob("*.programs")
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    modules._module(other, Program(PTX))
    assert len(other.assembled) == 1


@pytest.mark.parametrize(
    "failing", ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete", "cuDriverGetVersion", "ELF"]
)
def test_a_driver_that_hands_out_none_loads_ptx(failing):
    driver = Driver(failing=(failing,))
    modules._module(driver, Program(PTX))
    assert driver.loaded[-1].startswith(b".version")


def test_a_disk_that_refuses_costs_nothing_but_the_next_assembly(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "file" / "below"))
    driver = Driver()
    modules._module(driver, Program(PTX))
    assert driver.loaded[0].startswith(b"\x7fELF")


def test_without_a_cache_the_drivers_own_serves(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    driver = Driver()
    modules._module(driver, Program(PTX))
    assert driver.assembled == []
    assert driver.loaded[0].startswith(b".version")


@pytest.mark.parametrize("cache", ["on", "off"])
def test_packs_hold_it_also_of_what_was_loaded_before(cache, monkeypatch, tmp_path):
    if cache == "off":
        monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    modules._module(Driver(), Program(PTX))
    gathered = artifact_store.Gathered({"device": "a test's"})
    monkeypatch.setattr(artifact_store, "_gathering", [gathered])
    modules._module(Driver(), Program(PTX))
    (code,) = (each for each in gathered.tables["programs"].values() if each.startswith(b"\x7fELF"))
    monkeypatch.setattr(artifact_store, "_gathering", [])
    monkeypatch.setattr(modules, "_modules", {})
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "another"))
    artifact_store.put_in_force(gathered)
    try:
        assert machine_code.carried()
        carried = Driver()
        modules._module(carried, Program(PTX))
    finally:
        artifact_store.take_out_of_force(gathered)
    assert carried.assembled == []
    assert carried.loaded == [code]


class _Device:
    class platform:  # noqa: N801
        name = "NVIDIA CUDA"


def test_a_program_of_streams_is_built_when_opencl_launches_it():
    cl = pytest.importorskip("pyopencl")
    built = []
    assert ptx_program.ptx_program(_Device, PTX, lambda: built.append(1)) is None, "a queue's is built at once"
    with ptx_program.for_streams():
        program = ptx_program.ptx_program(_Device, PTX, lambda: built.append(1) or "built")
        assert ptx_program.ptx_program(_Device, b"\x7fELF", lambda: None) is None
    assert program.get_info(cl.program_info.KERNEL_NAMES) == "scale"
    assert program.get_info(cl.program_info.BINARIES) == [PTX]
    assert program.get_info(cl.program_info.BINARY_SIZES) == [len(PTX)]
    assert not built
    assert program.opencl == program.opencl == "built"
    assert built == [1]


def test_text_that_no_driver_takes_is_said_each_time():
    for _ in range(2):
        with pytest.raises(Unlaunchable, match="no PTX"):
            modules._module(Driver(), Program(b"\x00\xff binary"))
    assert machine_code.machine_code(Driver(failing=("cuLinkCreate_v2",)), PTX.decode()) is None
