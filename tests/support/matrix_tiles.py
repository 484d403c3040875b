"""Plugins over tile instructions: what their descriptions say, their plans in plain C, and their makers' compilers."""

from __future__ import annotations

import re
import shutil
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest
from plans import check_plan

from convdispatch.api import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.matrix import VendorTile
from convdispatch.device.matrix_tiles.instruction import Fragment, TileInstruction
from convdispatch.device.matrix_tiles.solver import VendorPlan, VendorTiling
from convdispatch.device.programs.kernels import rendering

MAX_SPILLS = 32
"""Most registers of 256 that a compiler may move to memory: clang reads a weight gradient's numbers far ahead."""
PROBLEMS = ("fwd_f32_mb8ic64ih14iw14oc64kh3ph1+bias+relu", "bwd_weights_f32_mb8ic64ih14iw14oc64kh3ph1",
            "bwd_data_f32_nhwc_mb8ic64ih14iw14oc64kh3ph1sh2", "fwd_bf16_nhwc_mb8ic64ih14iw14oc64kh3ph1",
            "fwd_f16_nhwc_mb8ic64ih14iw14oc64kh1", "bwd_weights_f16_nhwc_mb8ic64ih14iw14oc64kh3ph1")  # fmt: skip
"""Problems whose texts a maker's compiler must take: each direction, layout, dtype and a format of float32."""


def check(queue: Any, text: str, kind: type[VendorTile], config: dict, *, limit: float | None = None) -> None:
    """Run a small tile of an instruction in plain C; with ``limit`` on real data."""
    problem = ConvProblem.parse(text)
    core = kind.INSTRUCTIONS[config["engine"]]
    data = problem.direction != "bwd_weights"
    warps = max(1, (32 if data else 64) // core.lanes)
    shape = (max(32, core.m), max(core.n, 16), min(warps, 4), max(1, warps // 4)) if data else (64, 64, warps, 1)
    plain = "bfloat2" if problem.dtype == "float32" else problem.dtype
    config = {**dict(zip(("bm", "bn", "wm", "wn"), shape)), "bk": 32, "stages": 2, "format": plain, **config}
    tiling = VendorTiling(problem, kind.of(config))
    assert tiling.misfit is None, tiling.misfit
    plan = VendorPlan(kind, queue.context, problem, config, emulate=True)
    check_plan(queue, problem, plan, f"{problem} {config}", data="integer" if limit is None else "real", limit=limit)


def check_layout(core: TileInstruction, layout: dict[str, Any]) -> None:
    """Each lane holds what the maker's table says: of a and b as the description's runs, of d as its rows."""
    m, n, k = layout["m"], layout["n"], layout["k"]
    assert (core.m, core.n, core.k, core.lanes, core.sums) == (m, n, k, layout["lanes"], layout["sums"])
    assert core.a.numbers == layout["numbers"]
    assert core.b.numbers == layout.get("numbers_b", layout["numbers"])
    for copies, fragment, depth_first in ((layout["a"], core.a, True), (layout["b"], core.b, False)):
        held = set()
        for places in copies:
            for element, place in enumerate(places):
                line, deep = divmod(element, k) if depth_first else divmod(element, n)[::-1]
                assert _number(fragment, *divmod(place, fragment.numbers)) == (line, deep)
                held.add(place)
        assert len(held) == core.lanes * fragment.numbers
    for element, place in enumerate(layout["d"]):
        lane, at = divmod(place, core.sums)
        row = _value(core.row, lane) + core.rows[at // core.width]
        assert (row, _value(core.column, lane) + at % core.width) == divmod(element, n)


def _number(fragment: Fragment, lane: int, place: int) -> tuple[int, int]:
    """The line and k of a lane's number."""
    line, deep = fragment.runs[place // fragment.run]
    return _value(fragment.line, lane) + line, _value(fragment.k, lane) + deep + place % fragment.run


def _value(expression: str, lane: int) -> int:
    """An OpenCL expression of whole numbers."""
    assert re.fullmatch(r"[\w /%*+]+", expression)
    return eval(expression.replace("/", "//"), {"lane": lane})


def texts_of(device: DeviceInfo, solver: Any, full: bool) -> list[str]:
    """The texts of the first configuration of each instruction and format, of each problem that is accepted; without
    ``full`` those of the first problem's first configuration."""
    found: list[str] = []
    context = types.SimpleNamespace(devices=[types.SimpleNamespace(name=device.name, driver_version="")])
    problems = [p for p in map(ConvProblem.parse, PROBLEMS) if solver.rejects(p, device) is None]
    for problem in problems if full else problems[:1]:
        firsts = {(c["engine"], c["format"]): c for c in reversed(list(solver.configs(problem, device)))}
        for config in firsts.values() if full else [next(iter(solver.configs(problem, device)))]:
            with rendering() as texts:
                solver.plan(context, problem, config)
            found += [each for each in texts if each not in found]
    return found


def compiles_for_amd(device: DeviceInfo, solver: Any, full: bool) -> None:
    """Clang's AMDGPU target compiles every text, and the product's assembly has the matrix instructions."""
    clang = shutil.which("clang-19") or shutil.which("clang")
    if clang is None or b"amdgcn" not in subprocess.run([clang, "-print-targets"], capture_output=True).stdout:
        pytest.skip("no clang with the target amdgcn (Debian: clang-19) on this machine")
    multiplied = False
    for text in texts_of(device, solver, full):
        command = [clang, "-x", "cl", "-cl-std=CL2.0", "-target", "amdgcn-amd-amdhsa", f"-mcpu={device.arch}", "-O2",
                   "-nogpulib", "-Xclang", "-finclude-default-header", "-S", "-o", "-", "-"]  # fmt: skip
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        spilled = [int(each) for each in re.findall(r"\.vgpr_spill_count: +(\d+)", done.stdout)]
        assert max(spilled) <= MAX_SPILLS, text[:200]
        multiplied |= bool(re.search(r"\bv_(mfma|wmma)_", done.stdout))
    assert multiplied


def compiles_for_intel(device: DeviceInfo, solver: Any, target: str, folder: Path, full: bool) -> None:
    """Intel's offline compiler takes every text."""
    if shutil.which("ocloc") is None:
        pytest.skip("no ocloc (Debian: intel-opencl-icd) on this machine")
    for number, text in enumerate(texts_of(device, solver, full)):
        file = folder / f"{number}.cl"
        file.write_text(text)
        command = ["ocloc", "compile", "-file", str(file), "-device", target, "-out_dir", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[:3000]
