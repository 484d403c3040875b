"""Keras 3's own convolution tests on its torch backend under enable(), counted.

    python -m bench keras_suite [PYTEST ARGUMENTS, such as -k Conv2D]

Keras' wheel brings its tests. Ends with pytest's status, or 1 where no convolution was routed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

FILES = ("conv", "conv_transpose", "depthwise_conv", "separable_conv")


def main(arguments: list[str]) -> int:
    """Run the suite in this process."""
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    import keras
    import pytest

    import convdispatch.torch as ct

    folder = Path(keras.__file__).parent / "src" / "layers" / "convolutional"
    files = [str(folder / f"{name}_test.py") for name in FILES]
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as settings, ct.enable():
        settings.write("[pytest]\nmarkers =\n    requires_trainable_backend: Keras' own\n")
        settings.flush()
        status = pytest.main(
            [
                *files,
                "-c",
                settings.name,
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:randomly",
                "-W",
                "ignore",
                *arguments,
            ]
        )
    counted = ct.counters()
    print(f"routed {counted['ours']}, left {counted['left']}")
    for reason, count in counted["reasons"].items():
        print(f"  left {count}: {reason}")
    return int(status) or int(not counted["ours"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
