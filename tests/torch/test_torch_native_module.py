"""The native call path's module: how it is found, built and installed, and who says so."""

from pathlib import Path

import pytest
import torch
from torch_checks import error

import convdispatch as cd
import convdispatch.torch as ct
from convdispatch.device.native import build, loading
from convdispatch.tools import doctor

F = torch.nn.functional


def test_doctor_says_which_way_calls_go(stand_in, monkeypatch):
    monkeypatch.setattr(doctor.cuda_driver, "unavailable", lambda: None)
    assert doctor._native() == "runs, below Python"
    monkeypatch.setenv("CONVDISPATCH_NATIVE", "0")
    loading._loaded.cache_clear()
    loading._opened.cache_clear()
    try:
        assert doctor._native() == "no, calls go by Python: CONVDISPATCH_NATIVE=0 turns it off"
    finally:
        loading._loaded.cache_clear()
        loading._opened.cache_clear()
    monkeypatch.setattr(doctor.cuda_driver, "unavailable", lambda: "no CUDA driver")
    assert doctor._native() == "no: no CUDA driver"


def test_it_stays_small():
    folder = Path(build.__file__).parent
    assert sum(len(each.read_text().splitlines()) for each in folder.iterdir() if each.suffix in (".h", ".cpp")) < 1850


def test_what_cannot_be_built_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(build.Unbuildable, match="no C\\+\\+ compiler"):
        build.build(tmp_path)
    monkeypatch.undo()
    if build.shutil.which("c++") is None:
        pytest.skip("no C++ compiler here")
    monkeypatch.setattr(build, "_torch", lambda: tmp_path)
    with pytest.raises(build.Unbuildable, match="the compiler failed"):
        build.build(tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_a_module_of_other_sources_is_not_used(stand_in, monkeypatch):
    """As a checkout that moved on keeps it: it knows what was said to it then."""
    monkeypatch.setattr(build, "sources", lambda: "others")
    loading._loaded.cache_clear()
    assert loading._loaded()[1].startswith("it is built from other sources: python -m convdispatch.device.native")
    loading._loaded.cache_clear()


def test_an_interface_that_refuses_leaves_pythons_way(stand_in, monkeypatch):
    real = loading.launcher()

    class Refusing:
        def __getattr__(self, name):
            return getattr(real, name)

        def install(self, *given):
            raise RuntimeError("PyTorch refuses")

    monkeypatch.setattr(loading, "launcher", Refusing)
    x, w = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3)
    with pytest.warns(cd.ConvDispatchWarning, match="go by Python: PyTorch refuses"):
        enabled = ct.enable(solver="im2col*")
    with enabled:
        for _ in range(2):
            assert error(F.conv2d(x, w, padding=1), F.conv2d(x.double(), w.double(), padding=1)) < 1e-5
        assert ct.counters()["ours"]
        assert not stand_in.launched
