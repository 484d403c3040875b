"""Norms and sums that nvidia's products fuse, by the kit's checks; plain C stands for tensor cores and copies."""

from __future__ import annotations

import pytest
from as_cuda import assembles_without_spills, needs_nvcc
from convdispatch_nvidia.packed.plan import NvidiaPlan
from convdispatch_nvidia.packed.tiling import Tile, Tiling
from convdispatch_nvidia.tma.plan import TmaPlan
from convdispatch_nvidia.tma.tiling import TmaTile, TmaTiling

from convdispatch import ConvProblem
from convdispatch.api import PARTS
from convdispatch.device.matrix_tiles.product.plan import Layout
from convdispatch.measurement.conformance.checks import Examination

pytestmark = [pytest.mark.usefixtures("item_by_item"), pytest.mark.computes]


class Emulated:
    """A solver whose plans are those of an engine in plain C."""

    fuses, exact, deterministic, batch_invariant, spreads_nonfinite = PARTS, True, True, False, False

    def __init__(self, engine: str) -> None:
        self.engine, self.name = engine, f"emulated.{engine}"

    def tiling(self, problem, config):
        if self.engine == "tma":
            return TmaTiling.of(problem, TmaTile.of({**config, "engine": "wgmma"}))
        return Tiling(problem, Tile.of({**config, "engine": self.engine}))

    def plan(self, context, problem, config):
        if self.engine == "tma":
            return TmaPlan(context, problem, config, "wgmma", emulate=True)
        return NvidiaPlan(context, problem, config, self.engine, emulate=True)


SMALL = {
    ("tma", True): {"bm": 64, "bn": 64, "wm": 1, "wn": 1},
    ("tma", False): {"bm": 64, "bn": 64, "wm": 1, "wn": 1},
    ("wgmma", True): {"bm": 64, "bn": 16, "wm": 1, "wn": 1, "bk": 32, "stages": 3},
    ("wgmma", False): {"bm": 64, "bn": 64, "wm": 1, "wn": 1, "bk": 32, "stages": 3},
    ("mma", True): {"bm": 32, "bn": 16, "wm": 1, "wn": 1, "bk": 32, "stages": 3},
    ("mma", False): {"bm": 64, "bn": 64, "wm": 2, "wn": 2, "bk": 32, "stages": 2},
}
"""By the engine, and whether the problem writes data: a tile."""
CASES = [
    # problem, engine, what the configuration adds
    ("fwd_f16_nhwc_mb2ic16ih6iw5oc24kh3ph1+bias+relu+sums", "wgmma", {"bn": 32}),
    ("fwd_f32_mb3ic12ih6iw5oc18kh3ph1+residual+relu+sums", "mma", {"window": True}),
    ("bwd_data_bf16_nhwc_mb2ic24ih7iw6oc16kh3ph1sh2sw2+residual+norm(relu)+sums", "mma", {}),
    ("fwd_bf16_mb2ic12ih6iw5oc24kh3ph1+norm(relu)+bias+sums", "mma", {}),
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+norm(relu)+bias+sums", "tma", {"split": 3, "fixup": True}),
    ("bwd_data_f32_tf32_nhwc_mb2ic72ih7iw5oc40kh3ph1sh2sw2+norm(relu)+sums", "tma", {"bk": 32}),
    ("fwd_f16_nhwc_mb9ic16ih9iw9oc128kh1+sums", "tma", {}),  # the tiles of a work group have the same columns
    ("fwd_bf16_nhwc_mb5ic16ih9iw9oc136kh1+sums", "tma", {}),  # they have not
    ("bwd_weights_f16_nhwc_mb2ic16ih6iw5oc24kh3ph1+norm(relu)", "tma", {}),
    ("fwd_bf16_nhwc_mb2ic72ih8iw7oc40kh3sw2+norm(leaky_relu(0.5))", "tma", {"norm_in_place": True}),
    ("bwd_weights_bf16_nhwc_mb4ic64ih7iw9oc80kh3kw1ph1pw0g2+norm(relu)", "tma",
     {"block": 32, "split": 2, "fixup": True}),
    ("fwd_bf16_nhwc_mb2ic24ih7iw5oc24kh3ph1sw2+norm(leaky_relu(0.5))+bias", "mma", {"norm_in_place": True}),
]  # fmt: skip
FURTHER_CASES = [
    ("fwd_f16_mb2ic16ih6iw5oc24kh3ph1+bias+relu+sums", "wgmma", {"bn": 128}),
    ("fwd_f32_nhwc_mb3ic12ih6iw5oc18kh3ph1+residual+relu+sums", "mma", {}),
    ("fwd_bf16_nhwc_mb2ic16ih6iw5oc24kh3ph1+sums", "mma", {"split": 2}),
    ("bwd_data_f16_mb2ic24ih7iw6oc16kh3ph1sh2sw2+residual+norm(leaky_relu(0.5))+sums", "wgmma", {"bn": 128}),
    ("bwd_data_f16_mb2ic24ih7iw6oc16kh3ph1+norm(relu)", "wgmma", {"split": 2}),
    ("bwd_data_f32_mb2ic10ih7iw6oc12kh3ph1sh2sw2+norm(relu)", "wgmma", {"stacked": True}),
    ("fwd_f16_nhwc_mb2ic16ih6iw5oc24kh3ph1+norm(relu)+sums", "wgmma", {"bn": 32}),
    ("fwd_f32_nhwc_mb3ic12ih6iw5oc18kh3ph1+norm(relu)", "mma", {}),
    ("fwd_f32_tf32_mb3ic12ih6iw5oc18kh3ph1g2+norm(leaky_relu(0.5))+residual+relu+sums", "wgmma", {"format": "half1"}),
    ("fwd_f32_tf32_mb2ic3ih11iw9oc12kh5kw4ph2sh2sw3+norm(identity)+constant", "wgmma",
     {"format": "half1", "split": 2}),
    ("bwd_weights_f32_mb2ic16ih6iw5oc24kh3ph1+norm(relu)", "mma", {"format": "half2"}),
    ("fwd_f16_nhwc_mb2ic16ih6iw5oc40kh3ph1+bias+relu+sums", "tma", {}),
    ("fwd_bf16_nhwc_mb2ic72ih6iw9oc136kh1+residual+sums", "tma", {"bm": 128, "wm": 2, "bn": 128}),
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+norm(relu)+bias+sums", "tma", {"split": 2}),
    ("fwd_f16_nhwc_mb2ic3ih9iw11oc24kh7kw7ph3pw3sh2sw2+bias+relu+sums", "tma", {"taps": 24, "bk": 32}),
    ("fwd_f32_tf32_nhwc_mb2ic48ih6iw5oc72kh3ph1+norm(relu)+residual+sums", "tma", {"bk": 32}),
    ("fwd_f16_nhwc_mb2ic16ih6iw5oc24kh3ph1+norm(relu)+sums", "wgmma", {"bn": 32, "norm_in_place": True}),
    ("fwd_bf16_nhwc_mb2ic48ih7iw5oc32kh2kw3ph0pw1g2dh2+norm(identity)", "mma", {"norm_in_place": True, "split": 2}),
    ("fwd_f16_nhwc_mb2ic72ih5oc24kh1+norm(relu)+sums", "mma", {"norm_in_place": True}),
    ("fwd_f16_nhwc_mb2ic136ih5iw5oc72kh1ph0+norm(relu)+bias+sums", "tma",
     {"norm_in_place": True, "split": 2, "fixup": True}),
    ("fwd_f16_nhwc_mb2ic128ih8iw5oc80kh3g2dh2dw1+norm(relu)", "tma", {"bn": 32, "bk": 32, "norm_in_place": True}),
    ("fwd_f32_tf32_nhwc_mb2ic48ih8iw7oc72kh3+norm(relu)+residual+sums", "tma",
     {"bm": 128, "wm": 2, "bk": 32, "norm_in_place": True}),
    ("fwd_f32_tf32_nhwc_mb2ic24ih8iw7oc72kh3+norm(identity)", "tma", {"bk": 16, "norm_in_place": True}),
    ("fwd_f32_tf32_nhwc_mb9ic16ih9iw9oc64kh1+bias+sums", "tma", {"bk": 16}),
    ("bwd_data_f16_nhwc_mb9ic64ih9iw9oc16kh3ph1sh2sw2+residual+norm(relu)+sums", "tma", {}),
    ("bwd_data_f16_nhwc_mb9ic128ih9iw9oc128kh3ph1g2+norm(relu)+sums", "tma", {}),
    ("bwd_weights_bf16_nhwc_mb4ic72ih7iw9oc72kh3kw1ph1pw0sh2sw2+norm(leaky_relu(0.5))", "tma",
     {"bm": 128, "bn": 128, "wm": 2, "split": 2}),
    ("bwd_weights_f16_nhwc_mb2ic16ih8iw8oc136kh1ph0+norm(relu)+accumulate", "tma", {"bm": 192, "wm": 3}),
    ("bwd_data_f16_nhwc_mb2ic72ih6iw5oc24kh3ph1+residual+norm(relu)+sums", "tma", {"bn": 128}),
    ("bwd_data_bf16_nhwc_mb2ic72ih7iw5oc24kh3ph1sh2sw2+residual+norm(leaky_relu(0.5))+sums", "tma", {}),
    ("bwd_data_bf16_nhwc_mb2ic72ih7iw5oc24kh3ph1+norm(relu)", "tma", {}),
    ("bwd_data_f32_tf32_nhwc_mb2ic72ih7iw5oc40kh3ph1+residual+norm(relu)+sums+constant", "tma", {"bk": 32, "bn": 128}),
    ("bwd_data_f16_nhwc_mb2ic128ih6iw7oc128kh3ph1g2sh2sw2+norm(relu)+sums", "tma",
     {"split": 2, "fixup": True, "bk": 32}),
]  # fmt: skip


def config_of(problem: ConvProblem, engine: str, changes: dict) -> dict:
    format_name = problem.dtype
    if format_name == "float32":
        format_name = "tf32" if engine == "tma" else "bfloat2"
    return {**SMALL[engine, problem.direction != "bwd_weights"], "format": format_name, **changes}


def examine(queue, text: str, engine: str, changes: dict) -> None:
    problem, solver = ConvProblem.parse(text), Emulated(engine)
    config = config_of(problem, engine, changes)
    tiling = solver.tiling(problem, config)
    assert tiling.misfit is None
    Examination(solver, problem, config, Layout(tiling).size, queue).run(False)


@pytest.mark.parametrize(("text", "engine", "changes"), CASES, ids=[f"{engine}-{text}" for text, engine, _ in CASES])
def test_norms_and_sums(queue, text, engine, changes):
    examine(queue, text, engine, changes)


def test_every_way_of_storing(queue, full):
    for case in FURTHER_CASES if full else []:
        examine(queue, *case)


def test_what_leaves_no_sums():
    """Parts of a sum over k are summed by launches; phases side by side and small tiles are refused; texts of a problem
    without sums have no local memory for them."""
    problem = ConvProblem.parse("fwd_f16_nhwc_mb2ic16ih6oc24kh3ph1+sums")
    solver = Emulated("wgmma")
    for split in (1, 2):
        assert solver.tiling(problem, config_of(problem, "wgmma", {"split": split})).summed == (split == 1)
    tiny = {"bm": 32, "bn": 16, "wm": 1, "wn": 1, "bk": 32, "stages": 2}
    assert Emulated("mma").tiling(problem, config_of(problem, "mma", tiny)).misfit is None
    wide = {"bm": 64, "bn": 256, "stages": 3, "window": False}
    assert "local memory" in solver.tiling(problem, config_of(problem, "wgmma", wide)).misfit
    strided = ConvProblem.parse("bwd_data_f32_mb2ic10ih7iw6oc12kh3ph1sh2sw2+norm(relu)+sums")
    assert "stacked" in solver.tiling(strided, config_of(strided, "wgmma", {"stacked": True})).misfit


def test_parts_of_sums():
    """A work group leaves one part for all its tiles if they have the same columns, otherwise one for each.

    A tile whose epilogue has too few registers is refused."""

    def tiling(text, **changes):
        problem = ConvProblem.parse(text)
        return Emulated("tma").tiling(problem, config_of(problem, "tma", {"stages": 3, **changes}))

    two = tiling("fwd_f16_nhwc_mb64ic64ih28oc128kh1+sums")
    assert (two.m_tiles, two.n_tiles) == (784, 2)
    assert [two.sums_rows(units) for units in (1, 4, 132)] == [784, 2, 66]
    strided = tiling("bwd_data_f16_nhwc_mb64ic64ih28oc64kh3ph1sh2sw2+norm(relu)+sums")
    assert [strided.sums_rows(units) for units in (132, 300)] == [4 * 132, 4 * 196]
    wide = {"bm": 256, "bn": 128, "wm": 4}
    assert tiling("fwd_f16_nhwc_mb64ic64ih28oc128kh1+bias", **wide).misfit is None
    for part in ("residual", "sums"):
        assert "registers" in tiling(f"fwd_f16_nhwc_mb64ic64ih28oc128kh1+{part}", **wide).misfit


def text_of(problem: ConvProblem, engine: str, config: dict) -> str:
    """The product's text, of which nothing is compiled."""

    class Text(TmaPlan if engine == "tma" else NvidiaPlan):
        def _product(self, context):
            return None

        _reduce = _product

        def _pack(self, *_):
            return []

        _sums = _pack

    return Text(None, problem, config, "wgmma" if engine == "tma" else engine).product_text()


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "engine", "tile"),
    [
        ("fwd_f16_nhwc_mb64ic64ih56oc256kh1+sums", "tma", {"bm": 64, "bn": 128, "wm": 1, "resident": 2, "stages": 3}),
        ("bwd_data_f16_nhwc_mb64ic256ih56oc64kh1+residual+norm(relu)+sums", "tma", {"bm": 128, "bn": 128, "wm": 2}),
        ("fwd_f16_nhwc_mb64ic64ih56oc256kh1+sums", "tma", {"bm": 128, "bn": 192, "wm": 2}),
        ("fwd_f16_nhwc_mb64ic256ih56oc160kh3+norm(relu)+sums", "tma",
         {"bm": 128, "bn": 160, "wm": 2, "norm_in_place": True}),
        ("bwd_data_f16_nhwc_mb64ic1024ih14oc256kh1+residual+norm(relu)+sums", "tma", {"bm": 128, "bn": 224, "wm": 2}),
        ("fwd_f16_nhwc_mb64ic256ih56oc256kh3ph1+sums", "wgmma", {"bm": 128, "bn": 256, "wm": 2}),
    ],
)  # fmt: skip
def test_sums_stay_in_registers(full, text, engine, tile, tmp_path, monkeypatch):
    """What is summed beside the product's own sums has registers: the kernel assembles for Hopper without a spill."""
    if not full and engine == "wgmma":
        pytest.skip("thinned out; --full runs it")
    monkeypatch.setattr("convdispatch_nvidia.tma.maps.Map.encode", lambda self: (0,) * 16)
    config = {"format": "float16", "wn": 1, "stages": 4, **tile}
    assembles_without_spills(text_of(ConvProblem.parse(text), engine, config), "sm_90a", tmp_path)
