"""Oclgrind, a simulator of OpenCL devices: a sweep on it in a process of its own, and what its log says."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT, SUPPORT

FAULTS = ("Invalid read", "Invalid write", "data race", "Uninitialized", "divergence", "Unaligned", "Out of bounds")


def oclgrind(arguments: list[str], log: Path, folder: str | None = None) -> tuple[subprocess.CompletedProcess, str]:
    """Sweep on the simulator; the process and Oclgrind's own log."""
    environment = os.environ | {
        "CONVDISPATCH_DEVICE": "oclgrind",
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_MAX_ERRORS": "20",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
    }
    environment |= {"CONVDISPATCH_PLUGIN_DIR": folder} if folder else {}
    command = [sys.executable, str(SUPPORT / "sweep.py"), "--no-guards", *arguments]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=500)
    return done, log.read_text() if log.exists() else ""


def faults(log: str) -> list[str]:
    """The log's lines that say a kernel did wrong, each with the next line, which says where."""
    lines = [line.strip() for line in log.splitlines()]
    return [f"{line} {where}" for line, where in itertools.pairwise(lines) if any(fault in line for fault in FAULTS)]
