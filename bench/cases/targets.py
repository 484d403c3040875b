"""Every kernel and solver under each target that this machine can run, and under PoCL: a table of what was right.

    python -m bench targets                    one width a form; --turns 35 makes every width from 1 to 35 of each
    python -m bench targets --verify core      the conformance kit of every plugin besides

The exit status is 1 where anything was wrong. Nothing here is timed for its own sake.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from convdispatch.api.errors import NoDevice
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from selftest import cases
from selftest.run import run
from selftest.targets import compiling_for, runnable


def places() -> list[tuple[str, str, str | None]]:
    """Title, vendor and target of each."""
    found = []
    for vendor in ("intel", "pocl"):
        try:
            info = runtime.device_info(runtime.find_device(vendor))
        except NoDevice as error:
            print(f"{vendor}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        if vendor == "intel":
            found += [(f"Intel {target}", vendor, target) for target in runnable()]
        found.append((f"{info.platform}, the machine's own", vendor, None))
    return found


def verified(vendor: str, level: str) -> str:
    """The kit's verdict on every plugin, in processes of their own: which failed."""
    failed, loaded = [], [entry for entry in plugins().report if entry.status == "loaded" and entry.solvers]
    for entry in loaded:
        words = [sys.executable, "-m", "convdispatch", "verify", entry.name, "--level", level, "--device", vendor]
        done = subprocess.run(words, capture_output=True, text=True)
        if "failed" in done.stdout:
            failed.append(entry.name)
    return f"failed: {', '.join(failed)}" if failed else f"{len(loaded)} plugins, none failed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=1, help="widths of each form")
    parser.add_argument("--verify", metavar="LEVEL", help="core, training or full")
    parser.add_argument("--only", default="", help="part of a title")
    chosen = parser.parse_args()
    bad = False
    print("| target | kernels and solvers | right | wrong | refused in words |" + " kit |" * bool(chosen.verify))
    print("|---|---|---|---|---|" + "---|" * bool(chosen.verify), flush=True)
    for title, vendor, target in places():
        if chosen.only not in title:
            continue
        with compiling_for(target):
            result = run(runtime.address(runtime.find_device(vendor)), cases.every(chosen.turns))
            kit = verified(vendor, chosen.verify) if chosen.verify else ""
        computed = sum(1 for count in result.kinds.values() if count)
        row = f"| {title} | {computed} | {result.right} | {len(result.wrong)} | {result.refused} |"
        print(row + f" {kit} |" * bool(chosen.verify), flush=True)
        print(*result.wrong, sep="\n", file=sys.stderr)
        bad |= bool(result.wrong) or not result.right or kit.startswith("failed")
    sys.exit(bad)


if __name__ == "__main__":
    main()
