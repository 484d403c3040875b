"""What type checkers say: a user's program with the public names passes mypy and pyright, each mistake is found."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from typing import get_args

import pytest
from paths import ROOT

import convdispatch as cd
from convdispatch.api import literals
from convdispatch.api.activations.table import ACTIVATIONS

PROGRAM = """\
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import convdispatch as cd
from convdispatch.api import ConvProblem, Plan, Solver, hookimpl

x: npt.NDArray[np.float32] = np.ones((1, 3, 8, 8), np.float32)
w: npt.NDArray[np.float32] = np.ones((4, 3, 3, 3), np.float32)
y = cd.conv(x, cd.constant(w), padding=1, stride=(1, 1), activation="relu", math="fast", layout="nchw")
assert_type(y, npt.NDArray[np.float32])
dx = cd.conv_backward_data(y, w, x.shape, padding=((1, 1), (1, 1)))
assert_type(dx, npt.NDArray[np.float32])
up = cd.conv_transpose(y, w, stride=2, output_padding=1, activation="clip(-1,2)", out=None)
assert_type(up, npt.NDArray[np.float32])


class Batches:
    shape = (1, 3, 8, 8)


assert_type(cd.conv(Batches(), w, padding="same"), Batches)
with cd.policy(solver="im2col", max_error=1e-5, deterministic=True, tier="full") as chosen:
    assert_type(chosen, cd.Policy)
explanation = cd.explain(ConvProblem.parse("mb1ic4ih8oc4kh3"))
print(explanation.chosen or "nobody", [result.median_ms for result in cd.find("mb1ic4ih8oc4kh3", budget_ms=100.0)])
print(cd.runtime.devices())


class Mine(Solver):
    name = "mine"

    def rejects(self, problem: ConvProblem, device: cd.DeviceInfo) -> str | None:
        return None if problem.kh == 1 else f"1x1 only, got {problem.kh}x{problem.kw}"

    def plan(self, context: Any, problem: ConvProblem, config: Any) -> Plan:
        raise NotImplementedError


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    return [Mine()]
"""
MISTAKES = (
    'cd.conv(x, w, layout="nwhc")',
    'cd.conv(x, w, math="fp32")',
    'cd.conv(x, w, padding="full")',
    "cd.conv(x, w, strides=2)",
    'cd.policy(solvr="im2col")',
    'cd.policy(tier="half")',
    "cd.convolve(x, w)",
    "text: str = cd.conv(x, w)",
    'Mine().rejects("mb1", 3)',
)
MYPY = """\
[mypy]
strict = True
[mypy-convdispatch.*]
follow_imports = silent
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The folder of what mypy found out about the package, for its next run."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture(params=["mypy", "pyright"])
def faults(request, tmp_path, known):
    """Lines of the program in which a checker finds something wrong."""
    modules = [request.param] if request.param == "mypy" else ["basedpyright", "pyright"]
    module = next((name for name in modules if importlib.util.find_spec(name)), None)
    if module is None:
        pytest.skip(f"{request.param} is not installed")

    def check(text):
        (tmp_path / "program.py").write_text(text)
        (tmp_path / "mypy.ini").write_text(MYPY.replace("strict = True", f"strict = True\nmypy_path = {ROOT}"))
        settings = f'{{"extraPaths": ["{ROOT}"], "typeCheckingMode": "standard"}}'
        (tmp_path / "pyrightconfig.json").write_text(settings)
        for_mypy = ["--config-file", "mypy.ini", "--cache-dir", str(known), "program.py"]
        words = for_mypy if module == "mypy" else ["-p", "."]
        done = subprocess.run([sys.executable, "-m", module, *words], cwd=tmp_path, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1), said
        found = [line for line in said.splitlines() if ": error" in line or " - error" in line]
        return {int(line.partition("program.py:")[2].partition(":")[0]): line for line in found}

    return check


def test_a_users_program_passes(faults):
    assert faults(PROGRAM) == {}


def test_each_mistake_is_found(faults):
    first = PROGRAM.count("\n") + 1
    found = faults(PROGRAM + "\n".join(MISTAKES) + "\n")
    missed = [text for place, text in enumerate(MISTAKES) if first + place not in found]
    assert not missed
    assert min(found) >= first, found


def test_types_and_checks_name_the_same_words():
    from convdispatch.api import problem

    assert get_args(literals.Layout) == problem.LAYOUTS
    assert get_args(literals.Math) == problem.MATHS
    names = get_args(get_args(literals.Activation)[0])
    assert sorted(names) == sorted(ACTIVATIONS)


def test_help_says_what_options_take():
    words = inspect.getdoc(cd.conv)
    assert all(f'"{math}"' in words for math in get_args(literals.Math))
    assert (ROOT / "convdispatch" / "py.typed").exists()


def test_no_call_lacks_an_argument():
    """In code that this machine may not run too, as CUDA's: a call whose function got a new parameter."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports", "convdispatch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    wrong = ("Missing positional argument", "Missing named argument", "Unexpected keyword argument")
    assert "error" in done.stdout or done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stdout.splitlines() if any(each in line for each in wrong)]
