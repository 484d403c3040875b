"""A home that cannot be written: caches move to a closed temporary folder, with one warning, and everything works."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from convdispatch.device import cache_home

CALL = """
import warnings
warnings.simplefilter("always")
import numpy as np
from convdispatch import conv
print(conv(np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)).sum())
"""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="XDG's variables are Linux's")


def run(tmp_path, *command, **more):
    """A child whose home is a place where nobody can write, root neither."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    env = kept | {"HOME": "/proc/no-home", "TMPDIR": str(tmp_path), "CONVDISPATCH_DB": "/proc/no-home/db"} | more
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=300)


@LINUX
def test_a_call_works_with_one_warning(tmp_path):
    done = run(tmp_path, "-c", CALL)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 3888.0
    said = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert len(said) == 1, done.stderr
    assert "cannot be written" in said[0]
    assert str(tmp_path) in said[0]
    (place,) = (path for path in tmp_path.iterdir() if path.name.startswith("convdispatch-"))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert run(tmp_path, "-c", CALL).returncode == 0  # the next process finds the folder there


@LINUX
def test_the_command_line_works(tmp_path):
    done = run(tmp_path, "-m", "convdispatch", "doctor", "--no-probe")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX's")
@pytest.mark.parametrize("kind", ["open", "file", "link", "foreign"])
def test_a_folder_that_others_may_write_is_not_used(tmp_path, monkeypatch, kind):
    """What lies in a cache is run: a folder that somebody put there before is none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"convdispatch-{os.getuid()}"
    if kind == "open":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "file":
        place.write_text("")
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(mode=0o700)
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        place.rename(tmp_path / f"convdispatch-{uid + 1}")
        place = tmp_path / f"convdispatch-{uid + 1}"
    found = cache_home.temporary()
    assert found != place
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert found.parent == Path(tmp_path)


def test_the_same_folder_serves_every_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_home.temporary() == cache_home.temporary()
