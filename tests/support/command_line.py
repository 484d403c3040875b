"""``convdispatch`` as a shell runs it, in this process."""

from __future__ import annotations

import sys
from typing import Any

from click.testing import CliRunner, Result

from convdispatch.tools.cli import main

PATIENT = [
    sys.executable,
    "-c",
    "from convdispatch.tools import progress; progress.EVERY_S = 0.1\n"
    "from convdispatch.tools.cli import interrupts, run; interrupts.DEAF_S = interrupts.ENDING_S = 300.0; run()",
]
"""The command line that tells of its progress at once, and has minutes to end in after a signal, as a busy machine may
need."""


def run_cli(*words: object, status: int | None = None, **options: Any) -> Result:
    """What became of a command; its exit status is ``status``, if one is given."""
    done = CliRunner().invoke(main, [str(word) for word in words], **options)
    assert status is None or done.exit_code == status, done.output
    return done
