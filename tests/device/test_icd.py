"""Where vendors' libraries are looked for, and what the OpenCL loader is told; in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from convdispatch.api.errors import ConvDispatchWarning, NoDevice
from convdispatch.device.opencl import icd

INTEL = icd._installed_by_pip()
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


# --- libraries that end the process ----------------------------------------------------------------------------------

ENDS = {
    "crashes": ("*(volatile int *)0 = 1;", "it crashes as it loads (SIGSEGV)"),
    "aborts": ("abort();", "it crashes as it loads (SIGABRT)"),
    "exits": ("_exit(3);", "it ends the process as it loads (exit 3)"),
    "leaves": ("_exit(0);", "it ends the process as it loads (exit 0)"),
    "hangs": ("for (;;) sleep(1);", "it hangs as it loads: not done within 2 s"),
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Builds a library whose constructor does what the text says; answers its path."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")

    def build(name, text):
        source, made = tmp_path / f"{name}.c", tmp_path / f"lib{name}.so"
        head = "#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void begin(void) "
        source.write_text(f"{head}{{ {text} }}\n")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
        return str(made)

    yield build
    icd.how_it_ends.cache_clear()


@LINUX
@pytest.mark.parametrize("kind", ENDS)
def test_a_library_that_ends_the_process_is_named_and_left_out(bare, library, monkeypatch, kind):
    text, words = ENDS[kind]
    if kind == "hangs":
        monkeypatch.setattr(icd, "LOAD_S", 2.0)
    path = library(kind, text)
    (bare / "vendors" / "bad.icd").write_text(path)
    (bare / "vendors" / "good.icd").write_text("libgood.so")
    bad = next(vendor for vendor in icd.vendors() if vendor.library == path)
    assert bad.problem == words
    assert f"remove {bare / 'vendors' / 'bad.icd'}" in bad.mend
    with pytest.warns(ConvDispatchWarning, match=re.escape(f"OpenCL vendor library {path}: {words}; it is left out")):
        folder = icd.announce()
    assert [file.read_text().strip() for file in Path(folder).glob("*.icd")] == ["libgood.so"]
    os.environ.pop("OCL_ICD_VENDORS")


@LINUX
def test_the_user_s_choice_stands_without_what_ends_the_process(bare, library, monkeypatch):
    own = bare / "own"
    own.mkdir()
    (own / "bad.icd").write_text(library("crashes", ENDS["crashes"][0]))
    (own / "mine.icd").write_text("libmine.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(own))
    with pytest.warns(ConvDispatchWarning, match="crashes as it loads"):
        folder = icd.announce()
    assert [file.read_text().strip() for file in Path(folder).glob("*.icd")] == ["libmine.so"]


@LINUX
def test_a_library_is_tried_once_as_it_lies_on_the_disk(bare, library, monkeypatch):
    path = library("fine", "")
    tried = []
    real = icd._try
    monkeypatch.setattr(icd, "_try", lambda one: tried.append(one) or real(one))
    for _ in range(3):
        icd.how_it_ends.cache_clear()  # as in another process
        assert icd.how_it_ends(path) is None
    assert tried == [path]
    os.utime(path, (1, 1))
    icd.how_it_ends.cache_clear()
    assert icd.how_it_ends(path) is None
    assert tried == [path, path]


@LINUX
def test_a_call_survives_a_library_that_crashes(bare, library):
    """The whole way, in a process whose only new vendor crashes: conv() runs on the others, with a warning."""
    if not INTEL:
        pytest.skip("Intel's OpenCL runtime is not here")
    own = bare / "own"
    own.mkdir()
    (own / "bad.icd").write_text(library("crashes", ENDS["crashes"][0]))
    (own / "good.icd").write_text(INTEL[0][1])
    program = (
        "import warnings, numpy as np, convdispatch as cd\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    y = cd.conv(np.ones((1, 1, 6, 6), np.float32), np.ones((2, 1, 3, 3), np.float32))\n"
        "print((y == 9).all(), sum('crashes as it loads' in str(one.message) for one in said))"
    )
    environment = {**os.environ, "OCL_ICD_VENDORS": str(own)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "1"]), done.stderr


@LINUX
def test_an_older_tbb_is_told_from_other_troubles(bare, monkeypatch):
    (bare / "vendors" / "intel.icd").write_text("/opt/libintelocl.so\n")
    text = "/opt/libtask_executor.so: undefined symbol: _ZN3tbb6detail2r117initialize_globalE"

    def refuse(library):
        raise OSError(text)

    monkeypatch.setattr(icd.ctypes, "CDLL", refuse)
    (vendor,) = icd.vendors()
    assert vendor.problem.startswith("an older TBB than it needs was loaded before it, as OpenVINO brings one")
    assert "before `import openvino`" in vendor.mend
    from convdispatch.device import runtime

    monkeypatch.setattr(runtime, "devices", lambda: [])
    with pytest.raises(NoDevice, match="import convdispatch first"):
        runtime._ranked.__wrapped__()
