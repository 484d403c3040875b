"""A plugin that sabotages, put beside im2col and preferred by the registry; and a call that must not care."""

from __future__ import annotations

import textwrap
import warnings

import numpy as np

import convdispatch as cd
from convdispatch.measurement import reference

PLUGIN = """
import itertools, os
from convdispatch.api import KernelPlan, Solver, hookimpl

class Odd(BaseException):
    pass

def endless():
    return ({{"n": n}} for n in itertools.count())

def throw(error):
    raise error

def sink():
    return sink()

def late():
    yield {{}}
    raise ValueError("no more")

class Bad(Solver):
    name = "bad.solver"
    fuses = frozenset({{"bias", "activation"}})
    def rejects(self, problem, device):
        return None
    def plan(self, context, problem, config):
        raise AssertionError("an unsound solver must not be planned")

def answer(self, *arguments):
    return {expression}

Bad.{method} = answer

@hookimpl
def convdispatch_solvers():
    return [Bad()]
"""
X = np.arange(2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6) % 7 - 3
W = np.arange(8 * 4 * 3 * 3, dtype=np.float32).reshape(8, 4, 3, 3) % 5 - 2
BIAS = np.arange(8, dtype=np.float32) - 4
PROBLEM = cd.ConvProblem(mb=2, ic=4, ih=6, iw=6, oc=8, kh=3, kw=3)
FUSED = PROBLEM.replace(bias=True, activation="relu")


def placed(tmp_path, monkeypatch, read_anew):
    """A function that puts a plugin beside im2col, preferred by the registry."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    registry = tmp_path / "registry.yaml"
    registry.write_text("version: 1\nrules:\n  - prefer: ['bad.*', 'im2col*']\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(folder))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(registry))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,bad")
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))  # what other tests measured would decide

    def put(text, preferred=True):
        if not preferred:  # a rule that names no solver is said too
            registry.write_text("version: 1\n")
        (folder / "bad.py").write_text(textwrap.dedent(text))
        read_anew()

    return put


def expected():
    return reference.compute(FUSED, x=X, w=W, bias=BIAS).astype(np.float32)


def check_one_warning(words):
    """conv() is right twice, and warned exactly once, in these words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            np.testing.assert_array_equal(cd.conv(X, W, BIAS, activation="relu"), expected())
    said = [str(warning.message) for warning in caught if warning.category is cd.ConvDispatchWarning]
    assert len(said) == 1, said
    assert words in said[0]
    assert "bad" in said[0]
    return said[0]
