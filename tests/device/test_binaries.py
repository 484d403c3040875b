"""Compiled kernels in the store: loaded again, and compiled anew where damaged."""

from __future__ import annotations

import types
import warnings

import pyopencl as cl
import pytest
from host_programs import answer
from pyopencl import characterize
from threads import together

from convdispatch.api import BuildFailed, build
from convdispatch.device.cache.store import PROGRAMS
from convdispatch.device.programs import binary_cache, kernels

TEXT = "kernel void k(global int *x) { x[get_global_id(0)] = NUMBER; }"


@pytest.fixture
def folder(tmp_path, monkeypatch, queue):
    if binary_cache._keeps_kernels(queue.device):
        pytest.skip("the driver keeps compiled kernels itself")
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_second_time_from_the_file(queue, folder, compiled):
    for _ in range(3):
        assert answer(queue, binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])) == 7
    assert len(compiled) == len(list(folder.iterdir())) == 1
    assert answer(queue, binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=8"])) == 8
    assert answer(queue, binary_cache.compiled(queue.context, TEXT + " ", ["-DNUMBER=7"])) == 7
    assert len(compiled) == len(list(folder.iterdir())) == 3


def test_another_target_is_another_file(queue, folder, compiled, monkeypatch):
    """A driver's variables change what it compiles: a binary for one target would be wrong, or end the process."""
    binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", "corei7")
    binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])
    monkeypatch.setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "1")
    binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])
    assert len(compiled) == len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("damage", ["empty", "short", "changed", "other form", "no binary"])
def test_damaged_files_are_compiled_anew(queue, folder, compiled, damage):
    binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])
    (path,) = folder.iterdir()
    content = path.read_bytes()
    changed = bytearray(content)
    changed[-5] ^= 1
    path.write_bytes({"empty": b"", "short": content[:-1], "changed": bytes(changed), "other form": b"x" + content,
                      "no binary": b""}[damage])  # fmt: skip
    if damage == "no binary":  # whole, but nothing that the driver reads
        PROGRAMS.put(path.stem, b"not a program")
    assert answer(queue, binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])) == 7
    assert len(compiled) == 2
    assert PROGRAMS.get(path.stem) not in (None, b"not a program")
    assert answer(queue, binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])) == 7
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written(queue, folder, compiled, monkeypatch):
    folder.write_text("a file in the place of the folder above")
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(folder / "kernels"))
    for _ in range(2):
        assert answer(queue, binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])) == 7
    assert len(compiled) == 2


def test_off(queue, folder, compiled, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    for _ in range(2):
        binary_cache.compiled(queue.context, TEXT, ["-DNUMBER=7"])
    assert len(compiled) == 2
    assert not folder.exists()


def test_many_at_once(queue, folder):
    def work(_):
        for number in range(8):
            assert answer(queue, binary_cache.compiled(queue.context, TEXT, [f"-DNUMBER={number}"])) == number

    together(work, 4)
    assert sorted(path.suffix for path in folder.iterdir()) == [".programs"] * 8


def test_errors_keep_the_log(queue, folder):
    with pytest.raises(BuildFailed) as error:
        build(queue.context, "kernel void k() { unknown_thing; }")
    assert "unknown_thing" in error.value.log
    assert not folder.exists() or not list(folder.iterdir())


def test_warning_filters_are_the_callers(queue, folder):
    """Threads that build at once leave the process' filters as they are, and nothing that a compiler says warns."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = list(warnings.filters)

        def build(number):
            for turn in range(3):
                text = f"{TEXT}\n#warning {number} {turn}\n"
                kernels.build(queue.context, text, ["-DNUMBER=7"])
                assert warnings.filters == before

        together(build, 4)
        assert warnings.filters == before
    assert [str(warning.message) for warning in said] == []


def test_dropped_programs_come_back_from_their_files(queue, folder, compiled, monkeypatch):
    """Far more texts than are kept: each is compiled once, and later only loaded."""
    monkeypatch.setattr(kernels, "NEW_SHARE", 8 * kernels.PROGRAM_BYTES)
    texts = [TEXT + f"// {number}\n" for number in range(30)]
    for text in texts:
        kernels.build(queue.context, text, ["-DNUMBER=5"])
    assert texts[0] not in [text for _, text, _ in kernels._programs._all]
    del compiled[:]
    assert answer(queue, kernels.build(queue.context, texts[0], ["-DNUMBER=5"])) == 5
    assert compiled == []


def test_a_binary_is_a_program_too(queue):
    """What a plugin made of a compiled text: loaded as it is, once."""
    made = kernels.build(queue.context, TEXT, ["-DNUMBER=9"])
    binary = made.get_info(cl.program_info.BINARIES)[0]
    loaded = kernels.build(queue.context, bytes(binary))
    assert kernels.build(queue.context, bytes(binary)) is loaded
    assert answer(queue, loaded) == 9
    with pytest.raises(BuildFailed):
        kernels.build(queue.context, b"no binary at all")


def test_a_text_that_does_not_compile_says_where(queue):
    with pytest.raises(BuildFailed, match="did not compile") as caught:
        kernels.build(queue.context, "kernel void k(global int *y) { y[0] = nonsense; }")
    assert "nonsense" in caught.value.log


@pytest.mark.parametrize(
    ("platform", "kept"), [("NVIDIA CUDA", False), ("Portable Computing Language", True), ("Intel(R) OpenCL", False)]
)
def test_nvidias_driver_gets_files_though_it_keeps_kernels(monkeypatch, platform, kept):
    monkeypatch.setattr(characterize, "has_src_build_cache", lambda device: not platform.startswith("Intel"))
    device = types.SimpleNamespace(platform=types.SimpleNamespace(name=platform))
    assert binary_cache._keeps_kernels(device) is kept
