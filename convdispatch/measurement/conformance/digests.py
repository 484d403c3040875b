"""Digests of results under ``math="reproducible"``, one for each problem, which the results of all devices must have.

A problem is added to ``digests.json`` with any text as its digest; ``convdispatch verify exact`` names the
problem and prints the one that the device gives.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
from collections.abc import Mapping

import numpy as np

from ...api.problem import ConvProblem


@functools.cache
def known() -> Mapping[str, str]:
    """The committed digests by the problem's text."""
    text = importlib.resources.files(__package__).joinpath("digests.json").read_text(encoding="utf-8")
    return json.loads(text)


def operands(problem: ConvProblem) -> dict[str, np.ndarray]:
    """The operands of a problem, seeded by its text: numbers of either sign from 1/16 to 16, every bit of them drawn.

    They are built from the generator's integers, because NumPy may change how it draws floating-point numbers.
    """
    seed = int.from_bytes(hashlib.sha256(str(problem).encode()).digest()[:8], "little")
    bits = np.random.PCG64(seed)
    arrays = {}
    for name in ("x", "w", "y", "bias", "residual", "initial"):
        shape, dtype = problem.form(name)
        random_words = bits.random_raw(int(np.prod(shape)))
        if dtype == "float32":
            exponent = np.uint64(123) + (random_words >> np.uint64(40)) % np.uint64(8)
            word = (random_words & np.uint64(0x807FFFFF)) | exponent << np.uint64(23)
            arrays[name] = word.astype(np.uint32).view(np.float32).reshape(shape)
        else:
            exponent = np.uint64(1019) + (random_words >> np.uint64(52)) % np.uint64(8)
            word = (random_words & np.uint64(0x800FFFFFFFFFFFFF)) | exponent << np.uint64(52)
            arrays[name] = word.view(np.float64).reshape(shape)
    return arrays


def digest(result: np.ndarray) -> str:
    """The SHA-256 of a result's bytes, little-endian."""
    return hashlib.sha256(result.astype(result.dtype.newbyteorder("<")).tobytes()).hexdigest()
