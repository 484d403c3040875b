"""JAX's and Keras 3's own tests of convolutions under enable(), counted.

    python -m bench suites jax FOLDER [--math ieee] [PYTEST ARGUMENTS]
    python -m bench suites keras [PYTEST ARGUMENTS, such as -k Conv2D]

FOLDER holds JAX's tests (``tests/`` of its repository, at the tag of the jax that is installed): its wheel has none.
Some of them compare two results of XLA's to the last digits: ``--math ieee`` asks for a plain sum's error. Keras' wheel
brings its tests, which run on its torch backend. Ends with pytest's status, or 1 where no convolution was routed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

JAX = ("lax_test.py", "lax_autodiff_test.py", "lax_vmap_test.py")
KERAS = ("conv_test.py", "conv_transpose_test.py", "depthwise_conv_test.py", "separable_conv_test.py")
PLAIN = ("-q", "-p", "no:cacheprovider", "-W", "ignore")


def jax_tests(folder: str, *arguments: str) -> tuple[int, dict]:
    """pytest's status, and what became of calls."""
    import convdispatch.jax as cj

    math = None
    if arguments[:1] == ("--math",):
        math, arguments = arguments[1], arguments[2:]
    files = [str(path) for name in JAX if (path := Path(folder, name)).exists()]
    if not files:
        raise SystemExit(f"{folder} has none of {', '.join(JAX)}")
    with cj.enable(math=math):
        status = pytest.main([*files, *PLAIN, "-k", "Conv and not Convert", "--import-mode=importlib", *arguments])
    counted = cj.counters()
    print(f"compiled: {counted['lowered']} for here")
    return status, counted


def keras_tests(*arguments: str) -> tuple[int, dict]:
    """The same of Keras."""
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    import keras

    import convdispatch.torch as ct

    folder = Path(keras.__file__).parent / "src" / "layers" / "convolutional"
    files = [str(folder / name) for name in KERAS]
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as settings, ct.enable():
        settings.write("[pytest]\nmarkers =\n    requires_trainable_backend: Keras' own\n")
        settings.flush()
        status = pytest.main([*files, *PLAIN, "-c", settings.name, "-p", "no:randomly", *arguments])
    return status, ct.counters()


def main(arguments: list[str]) -> int:
    """Run a suite in this process."""
    if arguments[:1] not in (["jax"], ["keras"]) or arguments == ["jax"]:
        print(__doc__)
        return 0 if "--help" in arguments else 2
    status, counted = (jax_tests if arguments[0] == "jax" else keras_tests)(*arguments[1:])
    print(f"calls here {counted['ours']}, left {counted['left']}")
    for reason, count in sorted(counted["reasons"].items(), key=lambda each: -each[1]):
        print(f"  left {count}: {reason}")
    return int(status) or int(not counted["ours"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
