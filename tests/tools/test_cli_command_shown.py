"""A report shows the command that was run, word for word, so that running it again measures the same."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys


def test_a_page_shows_the_command_that_was_run(tmp_path):
    words = ["bench", "mb1ic8ih10oc8kh3ph1", "--budget", "30", "--dtype", "float32"]
    where = ["--json", str(tmp_path / "run.json"), "--html", str(tmp_path / "page.html")]
    environment = os.environ | {"CONVDISPATCH_PLUGINS": "im2col"}
    command = [sys.executable, "-m", "convdispatch", *words, *where]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = "convdispatch " + shlex.join([*words, "--json", "run.json", "--html", "page.html"])
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["command"] == shown
    assert shown in (tmp_path / "page.html").read_text()
    assert str(tmp_path) not in (tmp_path / "page.html").read_text()  # no folder of this machine
