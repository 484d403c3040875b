"""nvidia.tma: its geometry, maps and results, with the copy engine and the tensor cores replaced by plain C."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import shape_tables
from as_cuda import assembles_without_spills, needs_nvcc
from convdispatch_nvidia import probe
from convdispatch_nvidia.tma.plan import TmaPlan
from convdispatch_nvidia.tma.rewriting import folded, folds
from convdispatch_nvidia.tma.tiling import TmaTile, TmaTiling
from plans import check_on_device, check_plan

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device.programs.kernels import rendering
from convdispatch.measurement import shapes
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tools.rendered import rendered
from convdispatch.tools.targets.described import described_context

pytestmark = [pytest.mark.usefixtures("item_by_item"), pytest.mark.computes]

SOLVER = plugins().solvers["nvidia.tma"]
HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
TF32 = 4e-4
"""Error of sums of products of numbers that were rounded to TF32; 2.8e-4 on an H200."""
SMALL = {"bm": 64, "bn": 64, "wm": 1, "wn": 1}
CASES = [
    # problem, what the configuration adds
    ("fwd_f16_nhwc_mb2ic16ih6iw5oc16kh3ph1+bias+relu", {}),
    ("fwd_bf16_nhwc_mb1ic72ih6iw6oc40kh3ph1+residual", {"bn": 32}),
    ("fwd_f16_nhwc_mb3ic8ih9iw7oc24kh3kw2ph1pw0ph_r0pw_r1sh2sw3", {"bm": 128, "wm": 2}),
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0", {"split": 2}),
    ("fwd_bf16_nhwc_mb2ic128ih6iw5oc80kh3ph2g2dh2dw1", {"bn": 32}),
    ("fwd_f16_nhwc_mb2ic24iw11oc16kw3pw1sw2+accumulate", {}),
    ("bwd_data_f16_nhwc_mb2ic24ih6iw5oc72kh3ph1", {"bn": 128}),
    ("bwd_data_bf16_nhwc_mb1ic40ih7iw6oc16kh2kw4ph1pw2dh2", {"split": 3}),
    ("bwd_data_f16_nhwc_mb2ic128ih4iw4oc128kh3ph1g2", {"bm": 128, "wm": 2}),
    ("bwd_weights_f16_nhwc_mb3ic24ih6iw5oc40kh3ph1", {}),
    ("bwd_weights_bf16_nhwc_mb4ic72ih7iw9oc72kh3kw1ph1pw0sh2sw2", {"split": 2, "bn": 128}),
    ("bwd_weights_f16_nhwc_mb2ic16ih8iw8oc136kh1ph0", {"bm": 128, "wm": 2}),
    ("bwd_weights_f16_nhwc_mb8ic128ih5iw5oc32kh3ph1g2dh2dw2+accumulate", {"split": 2}),
    # parts that work groups of the product add
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+bias+relu", {"split": 3, "fixup": True}),
    ("bwd_weights_bf16_nhwc_mb4ic72ih7iw9oc72kh3kw1ph1pw0sh2sw2", {"split": 2, "bn": 128, "fixup": True}),
    # columns of the last tile that begin earlier
    ("fwd_f16_nhwc_mb2ic40ih5iw5oc72kh3ph1+accumulate", {}),
    ("bwd_data_bf16_nhwc_mb2ic72ih5iw5oc40kh3ph1+bias+accumulate", {"split": 2, "fixup": True}),
    # groups of warps that take turns, with tiles of one and of two blocks of rows
    ("fwd_f16_nhwc_mb2ic72ih6iw7oc136kh3ph1+bias+relu", {"wm": 2, "turns": True}),
    ("bwd_data_bf16_nhwc_mb3ic136ih6iw9oc40kh3ph1", {"bm": 128, "bn": 128, "wm": 2, "turns": True}),
    ("fwd_f32_tf32_nhwc_mb2ic48ih9iw9oc72kh3ph1+bias", {"bm": 192, "bn": 32, "bk": 32, "wm": 2, "turns": True}),
    # slices of 32 channels
    ("fwd_f16_nhwc_mb1ic96ih6iw6oc40kh3ph1", {"bk": 32, "bn": 32}),
    ("fwd_bf16_nhwc_mb2ic64ih6iw5oc80kh3ph1g2", {"bk": 32, "bn": 64, "split": 2, "fixup": True}),
    ("bwd_data_f16_nhwc_mb2ic24ih6iw5oc40kh3ph1", {"bk": 32, "bn": 128}),
    ("bwd_weights_f16_nhwc_mb3ic96ih6iw5oc40kh3ph1", {"block": 32, "bn": 96}),
    ("bwd_weights_bf16_nhwc_mb4ic64ih7iw9oc80kh3kw1ph1pw0g2", {"block": 32, "split": 2, "fixup": True}),
    # pixels as channels, weights in the workspace and packed once
    ("fwd_f16_nhwc_mb2ic16ih6iw8oc24kh1ph0+bias+relu", {"pixels": 4}),
    ("fwd_bf16_nhwc_mb2ic24ih4iw6oc40kh1ph0+residual+constant", {"pixels": 8, "bn": 128}),
    ("bwd_data_f16_nhwc_mb1ic40ih4iw5oc32kh1ph0+bias+accumulate", {"pixels": 2}),
    # phases of a stride: of as many places or fewer, without taps, with parts
    ("bwd_data_f16_nhwc_mb2ic24ih7iw5oc72kh3ph1sh2sw2", {}),
    ("bwd_data_bf16_nhwc_mb2ic136ih6iw6oc40kh1ph0sh2sw2+residual", {"bk": 32}),
    ("bwd_data_f16_nhwc_mb1ic16ih9iw8oc72kh5kw4ph2pw1sh3sw2dh2", {"split": 2}),
    ("bwd_data_f16_nhwc_mb2ic128ih6iw7oc128kh3ph1g2sh2sw2", {"split": 2, "fixup": True, "bk": 32}),
    # what is added to the sums, in tiles and parts of many shapes
    ("fwd_bf16_nhwc_mb1ic72ih6iw6oc136kh3ph1+bias+residual+relu", {"bn": 128, "bm": 128, "wm": 2}),
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+bias+residual+relu6", {"split": 3, "fixup": True}),
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+residual+accumulate", {"split": 2}),
    # first layers: taps along w as channels
    ("fwd_f16_nhwc_mb2ic3ih9iw11oc24kh7kw7ph3pw3sh2sw2+bias+relu", {"taps": 24, "bk": 32}),
    ("fwd_bf16_nhwc_mb1ic1ih5iw140oc16kh3kw5ph1pw0pw_r2+constant", {"taps": 8, "bk": 32, "bm": 128, "wm": 2}),
    ("fwd_f32_tf32_nhwc_mb2ic3ih8iw9oc40kh3kw3ph1pw1+residual", {"taps": 16, "bk": 16}),
    ("fwd_f16_nhwc_mb2ic4iw300oc16kw4pw1sw3", {"taps": 32, "bk": 32}),
    # videos: causal and other pads, strides, dilation, groups and images; taps and phases along all three axes
    ("fwd_bf16_nhwc_mb1ic72id4ih5iw6oc40kd3kh3kw3pd2ph1pw1pd_r0ph_r1pw_r1+bias+residual", {"bn": 32}),
    ("fwd_f16_nhwc_mb2ic24id5ih6iw5oc72kd3kh3kw3pd0ph1pw1+bias+relu", {"bm": 128, "wm": 2}),
    ("fwd_f16_nhwc_mb2ic16id7ih5iw6oc24kd2kh3kw1sd2sh1sw3pd1ph2pw0dd3dh2dw1", {"split": 2}),
    ("fwd_bf16_nhwc_mb1ic128id3ih4iw5oc80kd3kh1kw2pd1ph0pw1g2", {"bn": 32, "split": 2, "fixup": True}),
    ("fwd_f16_nhwc_mb2ic24id3ih4iw6oc40kd1kh1kw1+residual+constant", {"pixels": 8, "bn": 128}),
    ("fwd_f32_tf32_nhwc_mb1ic48id4ih5iw5oc72kd3kh3kw3pd1ph1pw1+bias", {"bk": 32}),
    ("bwd_data_f16_nhwc_mb2ic24id4ih5iw6oc40kd3kh3kw3pd0ph1pw1", {"bn": 128}),
    ("bwd_data_bf16_nhwc_mb2ic16id5ih6iw7oc24kd3kh3kw2sd2sh2sw1pd1ph1pw0dd1dh1dw2", {}),
    ("bwd_data_f32_tf32_nhwc_mb1ic32id4ih5iw5oc40kd2kh3kw3pd1ph1pw1sd2sh1sw1", {"bk": 32}),
    ("bwd_weights_f16_nhwc_mb2ic24id4ih5iw6oc40kd3kh3kw3pd2ph1pw1pd_r0ph_r1pw_r1", {}),
    ("bwd_weights_bf16_nhwc_mb2ic72id5ih6iw5oc72kd2kh3kw1sd2sh1sw2pd1ph1pw0", {"split": 2, "bn": 128, "fixup": True}),
    # channels first, which launches turn: weights with taps and without, groups, phases, parts, videos, packed once
    ("fwd_f16_mb2ic72ih6iw5oc40kh3ph1+bias+relu", {}),
    ("fwd_bf16_mb3ic136ih9iw7oc72kh1ph0+constant", {"bm": 128, "wm": 2}),
    ("fwd_f16_mb2ic128ih6iw5oc80kh3kw2ph1pw0g2+constant", {"bn": 32, "split": 2, "fixup": True}),
    ("fwd_bf16_mb1ic24id4ih5iw6oc40kd3kh3kw3pd2ph1pw1pd_r0ph_r1pw_r1+bias", {"bn": 32}),
    ("fwd_f32_tf32_mb2ic48iw70oc72kw3pw1+bias+relu6", {"bk": 32, "wm": 2, "bm": 128, "bn": 128, "turns": True}),
    ("bwd_data_f16_mb2ic24ih7iw5oc72kh3ph1sh2sw2", {}),
    ("bwd_data_bf16_mb2ic128ih4iw4oc128kh3ph1g2+bias", {"bm": 128, "wm": 2}),
    ("bwd_data_f32_tf32_mb2ic72ih7iw5oc40kh3ph1sh2sw2+constant", {"bk": 32}),
    ("bwd_data_f32_tf32_mb2ic64ih6iw7oc128kh1ph0g2", {"bk": 32, "split": 2, "fixup": True}),
    # float32 numbers as TF32, of 128 and of 64 bytes a row; the data gradient's weights turned, and packed once
    ("fwd_f32_tf32_nhwc_mb2ic48ih6iw5oc72kh3ph1+bias+residual+relu", {"bk": 32}),
    ("fwd_f32_tf32_nhwc_mb3ic8ih9iw7oc24kh3kw2ph1pw0ph_r0pw_r1sh2sw3", {"bk": 16, "bm": 128, "wm": 2}),
    ("fwd_f32_tf32_nhwc_mb2ic72ih5iw5oc40kh1ph0+accumulate", {"bk": 32, "split": 2}),
    ("fwd_f32_tf32_nhwc_mb2ic64ih6iw5oc80kh3ph2g2dh2dw1", {"bk": 32, "bn": 32, "split": 3, "fixup": True}),
    ("fwd_f32_fast_nhwc_mb2ic24iw11oc16kw3pw1sw2", {"bk": 32}),
    ("bwd_data_f32_tf32_nhwc_mb2ic24ih6iw5oc72kh3ph1", {"bk": 32, "bn": 128}),
    ("bwd_data_f32_tf32_nhwc_mb2ic64ih4iw4oc32kh3kw2ph1pw0g2", {"bk": 16, "bm": 128, "wm": 2}),
    ("bwd_data_f32_tf32_nhwc_mb2ic72ih7iw5oc40kh3ph1sh2sw2+bias+constant", {"bk": 32}),
    ("bwd_data_f32_tf32_nhwc_mb1ic16ih9iw8oc72kh5kw4ph2pw1sh3sw2dh2", {"bk": 32, "split": 2}),
    ("bwd_data_f32_tf32_nhwc_mb2ic64ih6iw7oc64kh3ph1g2sh2sw2", {"split": 2, "fixup": True, "bk": 32}),
]


@pytest.mark.parametrize(("text", "extra"), CASES, ids=[text for text, _ in CASES])
def test_emulated(queue, text, extra):
    """Maps, taps, tiles and the lanes' exchange of columns."""
    problem = ConvProblem.parse(text)
    config = {**SMALL, "format": "tf32" if problem.dtype == "float32" else problem.dtype, **extra}
    assert TmaTiling.of(problem, TmaTile.of({**config, "engine": "wgmma"})).misfit is None
    check_plan(queue, problem, TmaPlan(queue.context, problem, config, "wgmma", emulate=True), f"{problem} {config}")


FOLDS = {
    "fwd_f16_nhwc_mb32ic16ih112oc96kh1": (1, 4, 8),
    "bwd_data_bf16_nhwc_mb32ic96ih56oc24kh1": (1, 8),
    "fwd_f16_nhwc_mb2ic40ih6oc40kh1": (1, 8),
    "fwd_f16_nhwc_mb1ic16ih6oc16kh1": (1, 4),  # 36 pixels are no multiple of 8
    "fwd_f16_nhwc_mb1ic16ih5oc16kh1": (1,),
    "fwd_f16_nhwc_mb2ic64ih8oc16kh1": (1,),  # rows are whole already
    "fwd_f16_nhwc_mb2ic16ih8oc16kh1sh2": (1,),
    "fwd_f16_nhwc_mb2ic16ih8oc16kh1ph1": (1,),
    "fwd_f16_nhwc_mb2ic16ih8oc16kh1ph0ph_r1": (1,),
    "fwd_f16_nhwc_mb2ic16ih8oc16kh3ph1": (1,),
    "fwd_f16_nhwc_g2mb2ic32ih8oc32kh1": (1,),
    "fwd_f16_mb2ic16ih8oc16kh1": (1,),
    "bwd_weights_f16_nhwc_mb2ic16ih8oc16kh1": (1,),
}


@pytest.mark.parametrize("text", FOLDS)
def test_pixels_that_may_be_folded(text):
    """Where tensors lie as those of fewer pixels with more channels would, and near misses."""
    problem = ConvProblem.parse(text)
    assert folds(problem) == FOLDS[text]
    for pixels in FOLDS[text][1:]:
        one = folded(problem, pixels)
        assert math.prod(one.x_shape) == math.prod(problem.x_shape)
        assert math.prod(one.y_shape) == math.prod(problem.y_shape)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_configurations_fit(direction):
    """Every configuration that is offered for real layers can be built and states its workspace."""
    solver, seen = SOLVER, 0
    for entry in [*shape_tables.load("near_miss"), *shape_tables.load("resnet50"), *shape_tables.load("googlenet")]:
        problem = entry.problem.replace(direction=direction, layout="nhwc", dtype="float16")
        if not problem.mb or solver.limits(problem, HOPPER):
            continue
        configs = list(solver.configs(problem, HOPPER))
        assert configs, problem
        seen += 1
        for config in configs:
            tiling = TmaTiling.of(problem, TmaTile.of({**config, "engine": "wgmma"}))
            assert tiling.misfit is None, (problem, config)
            assert solver.workspace(problem, HOPPER, config) >= tiling.partial_bytes + tiling.maps_bytes
            assert solver.cost(problem, HOPPER, config) > 0
    assert seen > 40


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fwd_f32_nhwc_mb2ic16ih6oc16kh3ph1", "math tf32 and fast only"),
        ("bwd_weights_f16_mb2ic16ih6oc16kh3ph1", "channels last"),
        ("fwd_f16_mb2ic16ih6oc16kh3ph1+residual", "a bias alone"),
        ("fwd_f16_mb2ic16ih6oc16kh3ph1+sums", "a bias alone"),
        ("bwd_weights_f16_nhwc_mb2ic3ih6oc16kh3ph1", "eight source channels"),
        ("fwd_f16_nhwc_mb2ic3ih6oc16kh3kw1ph1pw0", "multiples of eight"),
        ("fwd_f16_nhwc_mb2ic3ih6oc16kh3ph2dw2", "eight source channels"),
        ("fwd_f16_nhwc_mb2ic12ih6oc16kh1", "multiples of eight"),
        ("fwd_f16_nhwc_mb2ic32ih6oc64kh3ph1g2", "blocks of 32"),
        ("bwd_weights_f16_nhwc_mb2ic48ih6oc64kh3ph1g2", "blocks of 32"),
        ("fwd_f16_nhwc_mb2ic16ih300oc16kh3ph1dh140", "reach"),
        ("fwd_f16_nhwc_mb2ic16ih300oc16kh1sh9", "reach"),
        ("fwd_f16_nhwc_mb2ic16id40ih6iw6oc16kd3kh3kw3pd1ph1pw1dd16dh1dw1", "reach"),
        ("fwd_f16_nhwc_mb2ic16id4ih20iw20oc16kd3kh3kw3pd17ph1pw1", "reach"),
    ],
)
def test_refusals_say_why(text, words):
    assert words in SOLVER.limits(ConvProblem.parse(text), HOPPER)


@pytest.mark.parametrize(
    "text", ["fwd_f32_tf32_nhwc_mb2ic64ih6oc40kh3ph1+bias", "bwd_data_f32_tf32_nhwc_mb2ic40ih7iw6oc64kh3ph1sh2sw2"]
)
def test_tf32_is_the_nearest(queue, text):
    """Numbers are rounded once, not cut: half the error, and none that all have in common."""
    problem = ConvProblem.parse(text)
    plan = TmaPlan(queue.context, problem, {**SMALL, "format": "tf32", "bk": 32}, "wgmma", emulate=True)
    check_plan(queue, problem, plan, text, data="real", limit=TF32)


def test_on_the_device(queue):
    """On a GPU that proves the copy engine: integer data exactly and real data, every kind of map."""
    texts = [text for text, _ in CASES if "f32" not in text]
    check_on_device(queue, SOLVER, texts, {}, {"data": "real"})


def test_tf32_on_the_device(queue):
    """The same of float32 numbers as TF32."""
    check_on_device(queue, SOLVER, [text for text, _ in CASES if "f32" in text], {}, {"data": "real", "limit": TF32})


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "extra"),
    [
        ("fwd_f16_nhwc_mb64ic256ih56oc256kh3ph1", {"bm": 128, "bn": 256, "wm": 2}),
        ("fwd_f16_nhwc_mb64ic256ih56oc256kh3ph1+bias+residual+relu", {"bm": 128, "bn": 256, "wm": 2}),
        ("fwd_f16_nhwc_mb64ic256ih56oc256kh3ph1+bias", {"bm": 128, "bn": 128, "wm": 2, "turns": True}),
        ("bwd_data_f16_nhwc_mb64ic256ih56oc256kh3ph1", {"bm": 64, "bn": 256, "wm": 2, "turns": True}),
        ("bwd_data_f16_nhwc_mb64ic256ih56oc256kh3ph1", {"bm": 256, "bn": 128, "wm": 4}),
        ("bwd_weights_f16_nhwc_mb64ic256ih56oc256kh3ph1sh2sw2", {"bm": 128, "bn": 256, "wm": 2, "split": 4}),
        ("bwd_weights_f16_nhwc_mb64ic256ih56oc256kh1ph0", {"bm": 128, "bn": 128, "wm": 2, "resident": 2, "stages": 3}),
        ("bwd_weights_f16_nhwc_mb64ic256ih14oc256kh3ph1", {"bm": 128, "bn": 256, "wm": 2, "split": 7, "fixup": True}),
        ("bwd_data_f16_nhwc_mb64ic256ih56oc256kh3ph1sh2sw2", {"bm": 128, "bn": 256, "wm": 2, "bk": 32}),
        ("bwd_data_f16_nhwc_mb64ic256ih56oc512kh1sh2sw2", {"bm": 128, "bn": 128, "wm": 2, "split": 2, "fixup": True}),
        ("fwd_f16_nhwc_mb64ic64ih56oc256kh1+bias+residual+relu", {"bm": 192, "bn": 128, "wm": 3}),
        ("bwd_data_f16_nhwc_mb64ic256ih56oc64kh1+residual+norm(relu)", {"bm": 128, "bn": 256, "wm": 2}),
        ("fwd_f16_nhwc_mb64ic64ih56oc256kh1+bias+residual+relu", {"bm": 128, "bn": 128, "wm": 2, "resident": 2}),
        ("fwd_f32_tf32_nhwc_mb64ic256ih56oc256kh3ph1+bias+relu", {"bm": 128, "bn": 256, "wm": 2, "bk": 32}),
        ("fwd_f32_tf32_nhwc_mb64ic64ih56oc256kh1+bias+residual+relu", {"bm": 192, "bn": 128, "wm": 3, "bk": 32}),
        ("bwd_data_f32_tf32_nhwc_mb64ic256ih56oc256kh3ph1sh2sw2", {"bm": 128, "bn": 256, "wm": 2, "bk": 32}),
        ("fwd_f16_nhwc_mb1ic384id4ih120iw208oc384kd3kh3kw3pd0ph1pw1+bias", {"bm": 192, "bn": 192, "wm": 3}),
        ("bwd_data_f16_nhwc_mb2ic64id8ih28iw28oc64kd3kh3kw3pd1ph1pw1sd2sh2sw2", {"bm": 128, "bn": 64, "wm": 2}),
        ("bwd_weights_f16_nhwc_mb2ic64id8ih28iw28oc64kd3kh3kw3pd1ph1pw1", {"bm": 64, "bn": 64, "wm": 1, "split": 4}),
        (
            "fwd_f32_tf32_nhwc_mb64ic256ih14oc1024kh1",
            {"bm": 128, "bn": 256, "wm": 2, "bk": 16, "split": 4, "fixup": True},
        ),
    ],
)
def test_instructions_assemble(text, extra, tmp_path, monkeypatch):
    """The whole kernel with its instructions assembles for Hopper, and its sums stay in registers."""

    class Text(TmaPlan):
        def _pack(self, context, tensors):
            return []

        def _product(self, context):
            return None

        def _reduce(self, context):
            return None

    monkeypatch.setattr("convdispatch_nvidia.tma.maps.Map.encode", lambda self: (0,) * 16)
    problem = ConvProblem.parse(text)
    number = "tf32" if problem.dtype == "float32" else problem.dtype
    plan = Text(None, problem, {"format": number, "wn": 1, **extra}, "wgmma")
    assembles_without_spills(plan.product_text(), "sm_90a", tmp_path)


TWINS = [
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+bias+relu", "fwd_f16_nhwc_mb3ic80ih9iw7oc104kh3ph1sh2+bias+relu", {}),
    ("fwd_bf16_nhwc_mb2ic136ih5oc64kh1", "fwd_bf16_nhwc_mb3ic560ih9iw7oc128kh3kw5ph1dh2", {"split": 2, "fixup": True}),
    ("fwd_f32_tf32_nhwc_mb2ic48ih6iw5oc72kh3ph1", "fwd_f32_tf32_nhwc_mb1ic80ih9iw8oc136kh1", {"bk": 32}),
    ("bwd_data_f16_nhwc_mb2ic72ih6iw5oc24kh3ph1", "bwd_data_f16_nhwc_mb1ic104ih7iw9oc40kh1", {}),
    ("bwd_data_f16_nhwc_mb2ic72ih7iw5oc24kh3ph1sh2", "bwd_data_f16_nhwc_mb1ic104ih8iw9oc40kh3ph1sh2", {"split": 2}),
    ("bwd_weights_f16_nhwc_mb3ic24ih6iw5oc40kh3ph1", "bwd_weights_f16_nhwc_mb5ic72ih7iw9oc72kh5ph2sh2", {"split": 2}),
]  # fmt: skip
"""Pairs of problems of a tile: every number of the geometry differs, what is compiled does not."""


@pytest.mark.parametrize(("text", "twin", "extra"), TWINS)
def test_geometries_share_a_program(text, twin, extra):
    """The same text, with other arguments; ``CASES`` compute with them."""
    texts, arguments = set(), []
    for each in (text, twin):
        problem = ConvProblem.parse(each)
        number = "tf32" if problem.dtype == "float32" else problem.dtype
        with rendering():
            plan = TmaPlan(described_context(HOPPER), problem, {**SMALL, "format": number, **extra}, "wgmma")
        program, numbers = plan._program
        texts.add(program)
        arguments.append([int(number) for number in numbers])
    assert len(texts) == 1
    assert arguments[0] != arguments[1]


def test_programs_of_a_training_step():
    """ResNet-50's convolutions at batch 64 in float16, three directions: as many programs as (tile, direction) are
    chosen, not as many as layers."""
    layers, texts = 0, set()
    for entry, direction in itertools.product(shapes.load("resnet50_full"), DIRECTIONS):
        problem = entry.problem.replace(direction=direction, mb=64, layout="nhwc", dtype="float16")
        if not SOLVER.limits(problem, HOPPER):
            layers += 1
            texts.update(rendered(problem, "nvidia.tma", described="h200")[2])
    assert (layers, len(texts)) == (70, 30)


@pytest.mark.parametrize("engine", ["tma", "tma_tf32", "tma_deep"])
def test_the_probe_looks_at_taps(queue, monkeypatch, engine):
    """Maps of three axes are another instruction, and have a probe of their own; a tap that is off is seen."""
    sound = TmaPlan.product_text
    monkeypatch.setattr("convdispatch_nvidia.tma.plan.TmaPlan", functools.partial(TmaPlan, emulate=True))
    assert probe._probe_failure(queue.context, engine) is None
    axes = {"kx *": "(kx + 1) *", "ky *": "(ky ^ 1) *"} | ({"kz *": "(kz ^ 1) *"} if engine == "tma_deep" else {})
    for right, wrong in axes.items():
        assert right in sound(probe._plan(queue.context, engine)[1])
        monkeypatch.setattr(TmaPlan, "product_text", lambda plan, a=right, b=wrong: sound(plan).replace(a, b))
        assert probe._probe_failure(queue.context, engine) == "the probe computed wrong results", right
        monkeypatch.setattr(TmaPlan, "product_text", sound)


def test_videos_have_their_own_probe():
    video = ConvProblem.parse("fwd_f16_nhwc_mb1ic16id3ih6iw6oc16kd3kh3kw3")
    engines = [SOLVER.engine_of(each) for each in (video, video.replace(dtype="float32", math="tf32"))]
    assert engines == ["tma_deep", "tma_deep"]
