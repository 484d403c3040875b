"""The nvidia plugin: everything but the tensor cores' instructions runs on any device, in plain C stand-ins.

Plans run as ``plans.py`` says; integer data compare exactly.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess

import pytest
from convdispatch_nvidia.instructions import Instructions, Wgmma, for_hopper
from convdispatch_nvidia.packed.plan import NvidiaPlan
from convdispatch_nvidia.packed.tiling import Tile, Tiling
from plans import check_extremes, check_plan

from convdispatch import ConvProblem
from convdispatch.api import BuildFailed
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.device.matrix_tiles.geometry import product_geometry, window
from convdispatch.device.matrix_tiles.scales import Scales
from convdispatch.device.plans.steps import Areas
from convdispatch.device.programs.kernels import rendering
from convdispatch.measurement import shapes
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tools.targets.described import described_context

pytestmark = pytest.mark.usefixtures("item_by_item")


def solver_of(engine):
    return plugins().solvers[f"nvidia.{engine}"]


def check(queue, problem: ConvProblem, config, engine, *, emulate=True, **options) -> None:
    plan = NvidiaPlan(queue.context, problem, config, engine, emulate=emulate)
    check_plan(queue, problem, plan, f"{problem} {engine} {config}", **options)


HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
SMALL = {
    ("wgmma", True): {"bm": 64, "bn": 16, "wm": 1, "wn": 1, "bk": 32, "stages": 3},
    ("wgmma", False): {"bm": 64, "bn": 64, "wm": 1, "wn": 1, "bk": 32, "stages": 3},
    ("mma", True): {"bm": 32, "bn": 16, "wm": 1, "wn": 1, "bk": 32, "stages": 2},
    ("mma", False): {"bm": 64, "bn": 64, "wm": 2, "wn": 2, "bk": 32, "stages": 2},
}
CASES = [
    # problem, engine, what the configuration adds
    ("fwd_f32_mb1ic8ih6iw6oc16kh3ph1", "wgmma", {}),
    ("fwd_f32_mb1ic8ih6iw6oc16kh3ph1+bias+relu", "mma", {}),
    ("fwd_f32_nhwc_mb2ic12ih6iw5oc18kh3ph1+bias+residual+relu", "wgmma", {"bk": 64}),
    ("fwd_f32_nhwc_mb2ic12ih6iw5oc17kh3ph1+accumulate", "wgmma", {"split": 2}),
    ("fwd_f32_mb2ic3ih11iw9oc12kh5kw4ph2sh2sw3+constant", "wgmma", {"format": "half1", "split": 2}),
    ("fwd_f32_mb2ic12ih5iw6oc8kh2kw3ph0pw1ph_r1pw_r2g2dh2dw1", "wgmma", {"format": "bfloat3"}),
    ("fwd_f32_mb2ic16iw20oc8kw5pw2", "wgmma", {"stages": 4}),
    ("bwd_data_f32_mb2ic10ih7iw6oc12kh3ph1sh2sw2", "wgmma", {"bk": 64, "format": "half2"}),
    ("bwd_data_f32_nhwc_mb1ic10ih7iw6oc12kh1ph0sh3sw2", "wgmma", {}),
    ("bwd_data_f32_mb1ic9ih9iw9oc8kh4ph1sh2sw2dh2dw3+constant", "mma", {}),
    ("bwd_weights_f32_nhwc_mb3ic10ih5iw6oc12kh3ph1g2+accumulate", "wgmma", {"split": 2, "bk": 64}),
    ("bwd_weights_f32_mb4ic3ih11iw9oc12kh5kw4ph2sh2sw3", "wgmma", {"split": 3, "bm": 64, "bn": 128, "wn": 2}),
    # more slices than stages
    ("fwd_f32_mb1ic40ih5iw5oc16kh3ph1", "wgmma", {"flush_every": 2}),
    # sums moved after each slice: one slice more is in flight
    ("fwd_f32_mb1ic40ih5iw5oc16kh3ph1", "wgmma", {"stages": 2, "compensated": True, "split": 2}),
    ("fwd_f32_mb2ic40iw9oc16kw3pw1", "wgmma", {"stages": 3, "window": True, "flush_every": 0, "compensated": True}),
    ("bwd_data_f32_mb2ic3ih11iw10oc40kh5ph2sh2sw2", "wgmma", {"stages": 2, "stacked": True, "flush_every": 0}),
    ("bwd_weights_f32_mb8ic8ih8iw8oc8kh3ph1", "wgmma", {"stages": 2, "compensated": True, "split": 3, "bk": 64}),
    ("bwd_weights_f32_mb4ic8ih8iw8oc8kh3ph1", "wgmma", {"flush_every": 0, "bk": 64, "format": "half2"}),
    ("bwd_data_f32_nhwc_mb1ic24ih7oc40kh3ph1sh2", "mma", {"compensated": True, "format": "bfloat3"}),
    # windows
    ("fwd_f32_nhwc_mb3ic70ih5iw7oc16kh3ph1kw2dh2", "wgmma", {"window": True, "bk": 64, "bn": 8}),
    ("fwd_f32_mb3ic20ih5iw7oc16kh3ph1pw0ph_r2+bias", "mma", {"window": True}),
    ("bwd_data_f32_mb3ic20ih5iw7oc30kh3ph1kw4pw2dw2", "wgmma", {"window": True, "stages": 4, "bm": 128, "wm": 2}),
    ("fwd_f32_mb2ic8ih5iw4id5oc8kh3ph1pw1pd1kd2kw3", "wgmma", {"window": True, "bn": 8}),
    # windows that are shorter than the results' rows: pads as long as the kernel
    ("fwd_f32_mb2ic4ih5iw5oc6kh3kw3ph3pw3", "mma", {"window": True}),
    ("fwd_f32_mb2ic20id3ih5iw4oc8kd2kh3kw2pd3ph4pw3+bias", "wgmma", {"window": True, "bn": 8}),
    # stacked phases
    ("bwd_data_f32_mb2ic3ih11iw10oc12kh5ph2sh2sw2", "wgmma", {"stacked": True, "window": True}),
    ("bwd_data_f32_nhwc_mb1ic4ih13iw12oc20kh3ph1kw4pw0sh3sw2dh2dw3g2+bias", "wgmma", {"stacked": True, "split": 2}),
    # 16-bit tensors: channels last are read as they lie
    ("fwd_bf16_nhwc_mb2ic24ih6iw5oc24kh3kw2ph1+residual", "wgmma", {"bn": 8}),
    ("fwd_bf16_nhwc_mb2ic80ih6iw5oc48kh3kw2ph1g2+constant", "wgmma", {"bk": 64, "window": True}),
    ("fwd_f16_nhwc_mb2ic160ih6iw5oc40kh3ph1g2", "wgmma", {"bk": 64, "window": True, "split": 2}),
    ("fwd_f16_nhwc_mb2ic40ih6iw5oc40kh3ph1sh2", "mma", {"split": 3}),
    ("bwd_data_f16_nhwc_mb2ic80ih6iw5oc160kh3kw2ph1g2", "wgmma", {"bk": 64, "bn": 64, "window": True, "split": 2}),
    ("bwd_data_bf16_nhwc_mb2ic264ih5iw5oc72kh1ph0+bias", "wgmma", {"bk": 64, "bn": 128, "bm": 128, "wm": 2, "wn": 2}),
    ("fwd_f16_mb1ic12ih6iw6oc10kh3ph1", "wgmma", {}),
    ("bwd_weights_f16_nhwc_mb1ic16ih6iw6oc8kh3ph1", "wgmma", {}),
]
MORE = [
    # what the cases above have too, in other pairs: with --full only
    ("fwd_f32_mb1ic8ih7iw7oc8kh1sh2+constant", "wgmma", {"format": "half2"}),
    ("bwd_weights_f32_mb4ic10ih7iw6oc12kh3ph1sh2sw2", "wgmma", {"split": 2}),
    ("bwd_weights_f32_mb1ic8ih5iw6oc8kh3ph1", "mma", {}),
    ("bwd_weights_f32_mb4ic8ih8iw8oc8kh3ph1", "wgmma", {"flush_every": 3}),
    ("fwd_f32_mb1ic40ih5iw5oc16kh3ph1+bias", "wgmma", {"flush_every": 2, "compensated": True}),
    ("fwd_f32_nhwc_mb1ic80ih5iw5oc16kh3ph1", "wgmma", {"stages": 2, "window": True}),
    ("bwd_data_f32_mb2ic10ih7iw6oc40kh3ph1sh2sw2", "wgmma", {"stages": 2, "compensated": True}),
    ("fwd_f32_mb1ic40ih5iw5oc16kh3ph1", "wgmma", {"flush_every": 0, "compensated": True, "window": True}),
    ("fwd_f32_mb2ic40ih6iw5oc16kh3ph1", "wgmma", {"window": True, "split": 2}),
    ("fwd_f16_nhwc_mb1ic16ih6iw6oc16kh3ph1+bias+relu", "wgmma", {"window": True}),
    ("fwd_bf16_nhwc_mb1ic16ih6iw6oc12kh3ph1", "wgmma", {}),
    ("fwd_f16_nhwc_mb2ic80ih6iw5oc40kh1ph0g2", "wgmma", {"bk": 64, "split": 1}),
    ("bwd_data_f16_nhwc_mb2ic72ih6iw5oc40kh3ph1", "wgmma", {"bk": 64, "bn": 64}),
    ("bwd_data_f16_nhwc_mb2ic64ih5iw7oc24kh2kw3ph1dw2", "wgmma", {"bk": 64, "bn": 64, "stages": 4}),
    ("bwd_data_bf16_mb1ic12ih6iw6oc10kh3ph1sh2sw2", "wgmma", {}),
]


def config_of(problem: ConvProblem, engine: str, extra: dict) -> dict:
    """A small tile for the problem."""
    plain = "bfloat2" if problem.dtype == "float32" else problem.dtype
    return {**SMALL[engine, problem.direction != "bwd_weights"], "format": plain, **extra}


@pytest.mark.parametrize(("text", "engine", "extra"), CASES + MORE, ids=[f"{e}-{t}" for t, e, _ in CASES + MORE])
def test_emulated(queue, full, text, engine, extra):
    """The kernels' geometry, with the tensor cores' instructions replaced by plain C that reads the same memory."""
    problem = ConvProblem.parse(text)
    if not full and (text, engine, extra) in MORE:
        pytest.skip("thinned out; --full runs it")
    config = config_of(problem, engine, extra)
    assert Tiling(problem, Tile.of({**config, "engine": engine})).misfit is None
    check(queue, problem, config, engine)


@pytest.mark.parametrize("name", ["bfloat2", "half2", "bfloat3"])
def test_accuracy_of_formats(queue, name):
    """Planes keep what they promise: 16, 22 and 24 bits."""
    problem = ConvProblem.parse("fwd_f32_mb1ic24ih6iw6oc16kh3ph1")
    limits = {"bfloat2": 8e-6, "half2": 2.5e-7, "bfloat3": 2.5e-7}
    check(queue, problem, config_of(problem, "wgmma", {"format": name}), "wgmma", data="real", limit=limits[name])


LONG = [
    # direction, engine, configuration, least and largest error
    ("fwd", "wgmma", {"bk": 64, "flush_every": 3}, 3e-7, 1e-6),
    ("fwd", "wgmma", {"bk": 64, "flush_every": 1}, 1.2e-7, 3e-7),
    ("fwd", "wgmma", {"bk": 64, "flush_every": 1, "compensated": True}, 2e-8, 1.6e-7),
    ("fwd", "wgmma", {"bk": 32, "flush_every": 1, "compensated": True}, 2e-8, 1.2e-7),
    ("fwd", "wgmma", {"bk": 32, "flush_every": 0, "compensated": True}, 2e-8, 1.2e-7),
    ("fwd", "mma", {"compensated": True}, 2e-8, 1.2e-7),
    ("bwd_weights", "wgmma", {"bk": 64, "flush_every": 1, "compensated": True}, 2e-8, 1.6e-7),
    ("bwd_weights", "mma", {"compensated": True}, 2e-8, 1.2e-7),
]


@pytest.mark.computes
@pytest.mark.parametrize(("direction", "engine", "extra", "least", "most"), LONG)
def test_long_sums(queue, full, direction, engine, extra, least, most):
    """Sums over 4096 that tensor cores cut toward zero: the fewer of them a register takes up at once, the better; what
    its additions round away is not lost. The least tells that sums are cut here as there."""
    if not full and extra.get("bk") == 32 and extra["flush_every"]:
        pytest.skip("thinned out; --full runs it")
    text = "mb1ic4096ih4oc16kh1" if direction == "fwd" else "mb1ic16ih64oc64kh1"
    problem = ConvProblem.parse(f"{direction}_f32_ieee_{text}")
    plan = NvidiaPlan(
        queue.context, problem, config_of(problem, engine, {"format": "half2", **extra}), engine, emulate=True
    )
    error = check_plan(queue, problem, plan, f"{problem} {engine} {extra}", data="real", limit=most)
    assert least < error


@pytest.mark.parametrize(
    ("name", "compensated"),
    [("bfloat2", False), ("half2", False), ("bfloat3", False), ("half1", False), ("half2", True), ("bfloat3", True)],
)
def test_extremes(queue, full, name, compensated):
    if not full and compensated and name != "half2":
        pytest.skip("thinned out; --full runs it")
    problem = ConvProblem.parse("fwd_f32_mb1ic16ih6iw6oc16kh3ph1")
    config = config_of(problem, "wgmma", {"format": name, "compensated": compensated})
    plan = NvidiaPlan(queue.context, problem, config, "wgmma", emulate=True)
    check_extremes(queue, problem, plan, 2e-3 if name == "half1" else 1e-5)


def test_ptx_for_hopper():
    """Marked instructions are uncovered and the target rewritten; text without them is refused in words."""
    ptx = ".version 9.0\n.target sm_90, texmode_independent\n//@wgmma.fence.sync.aligned;\n"
    assert for_hopper(f"// .target sm_90\n \t.target\tsm_90\n.target sm_900\n{ptx}") == (
        "// .target sm_90\n \t.target\tsm_90a\n.target sm_900\n" + for_hopper(ptx)
    )
    assert for_hopper(ptx) == ".version 9.0\n.target sm_90a, texmode_independent\nwgmma.fence.sync.aligned;\n"
    with pytest.raises(BuildFailed, match="lacks the marked instructions"):
        for_hopper(".target sm_90\n")
    with pytest.raises(BuildFailed, match=r"expected PTX for sm_90, got \.target sm_80"):
        for_hopper(".target sm_80\n//@x;\n")


def test_scales_of_a_training_step_share_programs():
    """ResNet-50's convolutions at batch 64: a program for each direction and way to read the planes of two tensors
    (neighbouring channels or pixels, one or four at a time), of which each takes other numbers."""
    texts, arguments = [], set()
    for entry, direction in itertools.product(shapes.load("resnet50_full"), DIRECTIONS):
        problem, areas = entry.problem.replace(direction=direction, mb=64), Areas()
        scales = Scales(problem, areas, areas)
        with rendering() as rendered:
            launches = scales.launches(described_context(HOPPER), [scales.a.name, scales.b.name])
        texts += [text for text in rendered if text not in texts]
        arguments.add(tuple(tuple(launch._scalars) for launch in launches))
    assert (len(texts), len(arguments)) == (11, 60)


@pytest.mark.parametrize("engine", ["wgmma", "mma"])
@pytest.mark.parametrize(
    ("text", "compensated", "short"),
    [
        ("fwd_f32_ieee_mb8ic64ih14oc64kh3ph1", True, False),
        ("fwd_f32_ieee_mb8ic512ih14oc64kh1", False, False),
        ("bwd_data_f32_ieee_mb8ic64ih14oc32kh3ph1", False, False),
        ("bwd_weights_f32_ieee_mb8ic64ih14oc64kh3ph1", True, False),
        ("bwd_weights_f32_ieee_mb16ic64ih7oc64kh3ph1", True, True),
        ("bwd_weights_f32_ieee_mb8ic64ih7oc64kh3ph1", False, True),
    ],
)
def test_ieee_moves_sums_often(engine, text, compensated, short):
    """Long sums are compensated; a slice's sums are moved at once, short weights' gradients' after every 16 of k."""
    problem = ConvProblem.parse(text)
    tiles = [Tile.of({**config, "engine": engine}) for config in solver_of(engine).configs(problem, HOPPER)]
    tilings = [Tiling(problem, tile) for tile in tiles]
    assert all(tiling.misfit is None and tiling.drained for tiling in tilings)
    assert all(tile.compensated == compensated for tile in tiles)
    assert engine == "mma" or {tile.flush_every for tile in tiles} == {0 if short else 1}
    assert engine == "mma" or Tiling(problem, dataclasses.replace(tiles[0], stages=2)).misfit is None
    assert not any(
        config.get("compensated") for config in solver_of(engine).configs(problem.replace(math="float32"), HOPPER)
    )


def test_windows_shift():
    """A tap is a shift between padded positions: every place reads through it what the geometry says."""
    for text in ("fwd_f32_mb2ic4ih5iw4oc4kh3ph1pw2kw2dw2", "bwd_data_f32_mb2ic4ih5iw4oc4kh3ph0pw2kw3"):
        geo = product_geometry(ConvProblem.parse(text))
        win, phase = window(geo), product_geometry(ConvProblem.parse(text)).phases[0]
        strides = (win.size[1] * win.size[2], win.size[2], 1)
        for number, tap in enumerate(itertools.product(*map(range, phase.taps))):
            for place in itertools.product(*map(range, phase.count)):
                at = sum(p * s for p, s in zip(place, strides)) + win.shifts[number]
                read = [o + p + t * s for o, p, t, s in zip(phase.origin, place, tap, geo.spread)]
                found = [at // strides[0], at // strides[1] % win.size[1], at % win.size[2]]
                pixel = [f - n for f, n in zip(found, win.near)]
                inside = all(0 <= r < size for r, size in zip(read, geo.source))
                shown = all(0 <= p < size for p, size in zip(pixel, geo.source))
                assert inside == shown
                assert not inside or pixel == read


WIDE, NARROW, TURNED = Wgmma(64, True, False, 128), Wgmma(8, False, False, 64), Wgmma(256, False, True, 128)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas here")
@pytest.mark.parametrize(
    ("given", "count"),
    [
        (Instructions("f16"), 3),
        (Instructions("bf16", ("copies", "mma")), 2 + 6 + 3),
        (Instructions("f16", ("copies", "mma")), 3 + 6 + 3),
        (Instructions("tf32", ("copies", "mma")), 1 + 6 + 3),
        (Instructions("bf16", ("copies",), WIDE), 2 + 6 + 6),
        (Instructions("f16", ("copies",), NARROW), 3 + 6 + 6),
        (Instructions("f16", ("bulk",), TURNED), 3 + 6 + 5 + 2 + 2 + 5 + 3 + 2),
        (Instructions("tf32", ("bulk",), WIDE), 1 + 6 + 5 + 2 + 2 + 5 + 3 + 2),
        (Instructions("f16", ("parts",)), 3 + 1 + 1 + 1 + 1),
    ],
)
def test_instructions_assemble(given, count, tmp_path):
    """All of a group's instructions, with registers for their operands, are PTX that ptxas takes."""
    lines = instructions(given.text())
    assert len(lines) == count
    body = "\n".join(lines)
    source = tmp_path / "wrappers.ptx"
    registers = "".join(f".reg .{kind} %{name}<300>;\n" for name, kind in REGISTERS.values())
    source.write_text(
        f".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k() {{\n{registers}{body}\nret;\n}}\n"
    )
    done = subprocess.run(["ptxas", "-arch=sm_90a", source, "-o", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + body


REGISTERS = {"f": ("f", "f32"), "r": ("r", "b32"), "l": ("rd", "b64"), "h": ("rs", "b16")}
"""By an operand's constraint: name and type."""


def instructions(text: str) -> list[str]:
    """Inline assembly of a text, its operands replaced by registers of the kind that their constraints name."""
    found = []
    text = re.sub(r"(?m)^(#define .* asm .*)$", r"\1;", text.replace('" #left "', "0").replace('" #count "', "40"))
    for match in re.finditer(r"asm(?: volatile)?\(((?:\s*\"[^\"]*\")+)(.*?)\);", text, re.DOTALL):
        code = "".join(re.findall(r'"([^"]*)"', match[1])).replace("\\n", "\n").replace("//@", "")
        kinds = re.findall(r'"[=+]?([frlh])"', match[2])
        names = [f"%{REGISTERS[kind][0]}{number}" for number, kind in enumerate(kinds)]
        found.append(re.sub(r"%(\d+)", lambda hit, names=names: names[int(hit[1])], code))
    return found


def test_on_the_device(queue):
    """On a GPU that proves the instructions: real data, all directions, in the formats' own accuracy."""
    info = runtime.device_info(queue.device)
    ran = 0
    for engine in ("wgmma", "mma"):
        solver = solver_of(engine)
        for text in ("fwd_f32_mb2ic32ih14oc48kh3ph1", "fwd_f32_nhwc_mb2ic3ih33oc24kh7ph3sh2sw2",
                     "fwd_f32_ieee_mb16ic72ih7oc48kh3ph1"):  # fmt: skip
            for direction in DIRECTIONS:
                problem = ConvProblem.parse(text).replace(direction=direction)
                if solver.rejects(problem, info):
                    continue
                ran += 1
                real = {"data": "real"} | ({"limit": 2e-7} if problem.math == "ieee" else {})
                for config in itertools.islice(solver.configs(problem, info), 6):
                    check(queue, problem, config, engine, emulate=False, **real)
                    check(queue, problem, config, engine, emulate=False)
    if not ran:
        pytest.skip(f"no tensor cores that nvidia's instructions reach: {solver_of('mma').rejects(problem, info)}")
