"""What type checkers say: a user's program with the public names passes mypy and pyright, each mistake is found."""

from __future__ import annotations

import functools
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
# Of PyTorch's and JAX's own sources nothing is asked: to read them takes most of a run.
MYPY = f"""\
[mypy]
strict = True
mypy_path = {ROOT}
ignore_missing_imports = True
[mypy-convdispatch.*]
follow_imports = silent
[mypy-torch.*,sympy.*,triton.*,jax.*]
follow_imports = skip
"""
PYRIGHT = f'{{"extraPaths": ["{ROOT}"], "typeCheckingMode": "standard"}}'
MODULES = ["-m", "users_program", "-m", "its_mistakes", "-p", "convdispatch"]
COMMANDS = {
    "mypy": ["mypy", "--config-file=mypy.ini", "--cache-dir=known", *MODULES],
    "basedpyright": ["basedpyright", "-p", "."],
    "pyright": ["pyright", "-p", "."],
}
CHECKERS = {"mypy": ["mypy"], "pyright": ["basedpyright", "pyright"]}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """``said(checker)``: the errors that a checker finds in the program, in its mistakes and (mypy) in the package."""

    @functools.cache
    def check(checker):
        module = next((name for name in CHECKERS[checker] if importlib.util.find_spec(name)), None)
        if module is None:
            pytest.skip(f"{checker} is not installed")
        folder = tmp_path_factory.mktemp(checker)
        texts = {"users_program.py": PROGRAM, "its_mistakes.py": PROGRAM + "\n".join(MISTAKES) + "\n"}
        for name, text in (texts | {"mypy.ini": MYPY, "pyrightconfig.json": PYRIGHT}).items():
            (folder / name).write_text(text)
        command = [sys.executable, "-m", *COMMANDS[module]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if ": error" in line or " - error" in line]

    return check


def faults(lines, file):
    """The errors of a file by their line."""
    return {int(line.partition(f"{file}:")[2].partition(":")[0]): line for line in lines if f"{file}:" in line}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_users_program_passes_and_each_mistake_is_found(checker, said):
    lines = said(checker)
    assert faults(lines, "users_program.py") == {}
    found, first = faults(lines, "its_mistakes.py"), PROGRAM.count("\n") + 1
    missed = [text for place, text in enumerate(MISTAKES) if first + place not in found]
    assert not missed
    assert min(found) >= first, found


def test_no_call_lacks_an_argument(said):
    """In code that this machine may not run too, as CUDA's: a call whose function got a new parameter."""
    wrong = ("Missing positional argument", "Missing named argument", "Unexpected keyword argument")
    assert not [line for line in said("mypy") if "its_mistakes.py" not in line and any(each in line for each in wrong)]


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
