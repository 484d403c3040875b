"""jax's own tests of convolutions under enable(), counted.

    python -m bench jax_suite FOLDER [--math ieee] [PYTEST ARGUMENTS]

FOLDER holds jax's tests (``tests/`` of its repository, at the tag of the jax that is installed): its wheel has none.
Some of them compare two results of XLA's to the last digits: ``--math ieee`` asks for a plain sum's error.
Ends with pytest's status, or 1 where no convolution was routed.
"""

from __future__ import annotations

import sys
from pathlib import Path

FILES = ("lax_test.py", "lax_autodiff_test.py", "lax_vmap_test.py")


def main(arguments: list[str]) -> int:
    """Run the suite in this process."""
    import pytest

    import convdispatch.jax as cj

    folder, math = Path(arguments[0]), None
    if arguments[1:2] == ["--math"]:
        math = arguments[2]
        arguments = [arguments[0], *arguments[3:]]
    files = [str(folder / name) for name in FILES if (folder / name).exists()]
    if not files:
        print(f"{folder} has none of {', '.join(FILES)}", file=sys.stderr)
        return 1
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "-k", "Conv and not Convert", "--import-mode=importlib"]
    with cj.enable(math=math):
        status = pytest.main([*files, *options, *arguments[1:]])
    counted = cj.counters()
    print(f"calls here {counted['ours']}; compiled: {counted['lowered']} for here, {counted['left']} left to XLA")
    for reason, count in sorted(counted["reasons"].items(), key=lambda each: -each[1]):
        print(f"  left {count}: {reason}")
    return int(status) or int(not counted["ours"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
