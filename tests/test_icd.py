"""Where vendors' libraries are looked for, and what the OpenCL loader is told; in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from convdispatch.device import icd

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="vendor files are Linux's way")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No vendors anywhere, the loader's variables unset; the cache folder is tmp_path/cache."""
    for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "vendors").mkdir()
    monkeypatch.setattr(icd, "SYSTEM_FOLDER", tmp_path / "vendors")
    monkeypatch.setattr(icd, "_installed_by_pip", lambda: [])
    monkeypatch.setattr(icd, "_unlisted_nvidia", lambda: [])
    monkeypatch.setattr(icd, "_bundled", lambda: [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@LINUX
def test_nothing_is_announced_where_nothing_is_found(bare):
    assert icd.vendors() == []
    assert icd.announce() is None
    assert "OCL_ICD_VENDORS" not in os.environ


@LINUX
def test_all_vendors_stand_in_one_folder(bare, monkeypatch):
    (bare / "vendors" / "acme.icd").write_text("libacme.so\n")
    monkeypatch.setattr(icd, "_installed_by_pip", lambda: [("pip: intel", "/opt/libintelocl.so")])
    folder = icd.announce()
    assert os.environ["OCL_ICD_VENDORS"] == folder
    listed = {file.name: file.read_text().strip() for file in (bare / "cache").rglob("*.icd")}
    assert listed == {"00-libacme.icd": "libacme.so", "01-libintelocl.icd": "/opt/libintelocl.so"}
    monkeypatch.delenv("OCL_ICD_VENDORS")
    assert icd.announce() == folder  # the same vendors, the same folder


@LINUX
def test_the_user_s_choice_stands(bare, monkeypatch):
    (bare / "vendors" / "acme.icd").write_text("libacme.so\n")
    own = bare / "own"
    own.mkdir()
    (own / "mine.icd").write_text("libmine.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(own))
    assert icd.announce() is None
    assert os.environ["OCL_ICD_VENDORS"] == str(own)
    assert [vendor.library for vendor in icd.vendors(load=False)] == ["libmine.so"]


@LINUX
def test_a_library_that_does_not_load_is_named_with_a_cure(bare):
    (bare / "vendors" / "gone.icd").write_text("/nowhere/libgone.so\n")
    (vendor,) = icd.vendors()
    assert vendor.library == "/nowhere/libgone.so"
    assert "libgone.so" in vendor.problem
    assert "reinstall the driver or remove the file" in vendor.mend


@LINUX
def test_empty_and_unreadable_vendor_files_are_passed_over(bare):
    (bare / "vendors" / "empty.icd").write_text("\n")
    (bare / "vendors" / "folder.icd").mkdir()
    (bare / "vendors" / "readme.txt").write_text("libtext.so")
    (bare / "vendors" / "good.icd").write_text("libgood.so")
    assert [vendor.library for vendor in icd.vendors(load=False)] == ["libgood.so"]


@LINUX
def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(bare, monkeypatch):
    (bare / "vendors" / "acme.icd").write_text("libacme.so\n")
    (bare / "cache").write_text("a file, where a folder should be")
    monkeypatch.setenv("TMPDIR", str(bare))
    assert icd.announce() is not None


def test_import_opens_no_device_and_leaves_the_environment_alone():
    program = (
        "import os, sys; before = dict(os.environ); import convdispatch; "
        "assert dict(os.environ) == before; assert 'pyopencl' not in sys.modules; assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
