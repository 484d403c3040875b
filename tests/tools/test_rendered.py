"""``convdispatch kernel``: the kernels of a solver as text, for devices that are there and for described ones."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from command_line import run_cli
from paths import ROOT

import convdispatch as cd
from convdispatch import policy
from convdispatch.device import runtime
from convdispatch.device.programs import kernels
from convdispatch.tools.rendered import rendered
from convdispatch.tools.targets.described import DESCRIBED

CASES = {
    "direct": ("mb1ic64ih14oc64kh1", "nvidia.direct", "h200", "direct"),
    "wgmma": ("fwd_f16_nhwc_mb1ic64ih14oc64kh3ph1", "nvidia.wgmma", "h200", "product"),
    "mma": ("bwd_weights_mb1ic64ih14oc64kh3ph1", "nvidia.mma", "a100", "product"),
    "winograd": ("mb1ic64ih14oc64kh3ph1", "winograd.tiled_f2x3", "mi300x", "fold|transform|data|put|inverse|gemm"),
    "im2col": ("mb1ic8ih9oc8kh3sh2", "im2col", "avx2", "lower|gemm"),
    "derived": ("mb1ic8ih9oc8kh3", None, "avx512", "."),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_devices_that_are_not_there(name, monkeypatch):
    problem, solver, described, kernel = CASES[name]
    monkeypatch.setattr(kernels, "_compile", lambda *_: pytest.fail("something was compiled"))
    found, config, texts = rendered(cd.ConvProblem.parse(problem), solver, described=described)
    assert found == (solver or found)
    assert isinstance(config, dict)
    assert any(re.search(rf"void\s+\w*(?:{kernel})", text) for text in texts)


def test_the_text_is_what_is_compiled(monkeypatch):
    problem = cd.ConvProblem.parse("mb1ic3ih11oc5kh3sh2")
    device, compiled, compile_ = runtime.queue().device, [], kernels._compile
    _, _, texts = rendered(problem, "im2col", device=runtime.address(device))
    monkeypatch.setattr(kernels, "_compile", lambda c, text, o: compiled.append(text) or compile_(c, text, o))
    x, w = (np.ones(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
    kernels.forget()
    with policy(solver="im2col"):
        y = cd.conv(x, w, stride=2)
    assert y.shape == problem.y_shape
    assert set(texts) <= set(compiled)
    assert texts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mb1ic8ih9oc8kh3", "--solver", "nobody"], "no solver is called 'nobody'"),
        (["mb1ic8ih9oc8kh3", "--solver", "nvidia.direct", "--described", "h200"], "1x1 kernels only, got 3x3"),
        (["mb1ic8ih9oc8kh3", "--described", "abacus"], "described devices are h200"),
        (["mb1ic8ih9oc8kh3", "--config", "3"], "a configuration is a JSON object"),
    ],
)
def test_refusals(arguments, words):
    done = run_cli("kernel", *arguments)
    assert done.exit_code
    assert words in done.output


def test_the_command_prints_every_program():
    done = run_cli("kernel", "mb1ic64ih14oc64kh1", "--solver", "nvidia.direct", "--described", "h200", status=0)
    assert done.stdout.startswith("// nvidia.direct {"), "a redirected file gets the text"
    assert "program 1 of 1" in done.output
    assert "void direct(" in done.output
    assert all(info.compute_units > 1 for info in DESCRIBED.values())


def test_the_page_shows_the_kernel_as_it_is():
    page = (ROOT / "docs" / "design" / "reading-a-kernel.md").read_text()
    (command,) = re.findall(r"^\$ convdispatch (.*)$", page, re.MULTILINE)
    text = run_cli(*shlex.split(command)).output.splitlines()
    place = 0
    for block in re.findall(r"^```c\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        place = 0
        for line in block.splitlines():
            assert line in text[place:], f"{line!r} stands nowhere behind the line before it"
            place = text.index(line, place) + 1
    assert place
