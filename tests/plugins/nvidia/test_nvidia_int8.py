"""nvidia.int8: all but the tensor cores' instructions runs on any device, in plain C stand-ins, to equal bits."""

from __future__ import annotations

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest
from convdispatch_nvidia import probe
from convdispatch_nvidia.int8 import tiling as tilings
from convdispatch_nvidia.int8.solver import Int8, Int8Plan
from convdispatch_nvidia.int8.tiling import Int8Tile, tiling_of

from convdispatch import ConvProblem, Quantization
from convdispatch.api.device import DeviceInfo
from convdispatch.api.dtypes import numpy_dtype
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.measurement.quantized import random_operands
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("item_by_item")

HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
GROUP = {"bm": 64, "bn": 32, "wm": 1, "wn": 1}
SMALL = {"mma": {"bm": 32, "bn": 32, "wm": 2, "wn": 1}, "wgmma": GROUP, "tma": GROUP, "halo": GROUP}
PRODUCTS = [
    # problem, engine, what the configuration adds: whole tiles and what is left of them, all dtypes of y
    ("u8s8u8_nhwc_mb2ic64ih5iw4oc32kh3ph1", "mma", {}),
    ("s8s8s8_nhwc_mb1ic80ih5iw6oc49kh3ph1+residual", "mma", {"bk": 128}),
    ("u8s8u8_nhwc_mb3ic72ih4iw5oc20kh1+residual+constant", "mma", {"bm": 64, "bn": 32, "wm": 1, "wn": 2}),
    ("s8s8s32_nhwc_mb1ic16ih7iw6oc33kh2kw3sh2ph1pw0+residual", "mma", {"stages": 4}),
    ("u8s8f32_nhwc_mb1ic36ih6iw5oc10kh3ph2dh2dw1ph_r1+residual", "mma", {"stages": 2}),
    ("u8s8f16_nhwc_mb1ic96ih4iw5oc24kh1sh2+residual", "mma", {}),
    ("s8s8u8_nhwc_g3mb1ic24ih6iw5oc36kh3ph1", "mma", {}),
    ("u8s8s8_nhwc_mb1ic32id3ih4iw3oc40kd2kh3kw3pd1ph1pw0", "mma", {"bk": 128}),
    ("s8s8u8_nhwc_mb2ic12iw9oc9kw5pw2sw2+constant", "mma", {}),
    ("u8s8u8_nhwc_mb2ic160ih5iw4oc40kh1+residual", "wgmma", {}),
    ("s8s8s8_nhwc_mb1ic48ih5iw4oc70kh3ph1+constant", "wgmma", {"bk": 128, "bn": 64, "stages": 4}),
    ("s8s8s32_nhwc_g2mb1ic64ih8iw9oc40kh3sh2ph1+residual", "wgmma", {"stages": 4}),
    # the copy engine's zeros beside x's zero point, on all sides; several tiles of a work group
    ("u8s8u8_nhwc_mb3ic64ih5iw6oc32kh3ph1", "tma", {}),
    ("s8s8s8_nhwc_mb1ic80ih7iw6oc70kh3ph1ph_r0dh2sw2+residual", "tma", {"bk": 128}),
    ("u8s8f16_nhwc_mb2ic48ih5iw4oc40kh2kw3ph0pw2+residual+constant", "tma", {"bn": 64}),
    ("s8s8s32_nhwc_g2mb2ic128ih6iw5oc40kh3ph1+residual", "tma", {"bm": 128, "wm": 2}),
    ("u8s8u8_nhwc_mb2ic96ih9iw8oc32kh1sh2+constant", "tma", {"bk": 128}),
    ("u8s8s8_nhwc_mb2ic16iw19oc24kw5pw2", "tma", {}),
    ("u8s8u8_nhwc_mb2ic16ih2iw1oc24kh5kw3ph2pw1", "tma", {}),
    # rows of x copied once for all taps: tiles beyond the last row, blocks of channels, a stage of a row of taps
    ("u8s8u8_nhwc_mb2ic64ih7iw13oc32kh3ph1+residual", "halo", {}),
    ("s8s8s8_nhwc_mb3ic160ih5iw9oc70kh3ph1ph_r0dh2dw2pw2+constant", "halo", {"bk": 128, "bn": 64}),
    ("u8s8s32_nhwc_g2mb1ic128ih9iw30oc64kh2kw5pw2", "halo", {"bm": 128, "wm": 2}),
    ("u8s8f16_nhwc_mb2ic16ih6iw5oc24kh3kw1ph1+residual", "halo", {"bn": 64, "bk": 128}),
]
FLOATS = [
    ("f8_e4m3f8_e4m3f8_e4m3_nhwc_mb2ic64ih5iw4oc32kh3ph1+residual", "mma", {}),
    ("f8_e5m2f8_e5m2bf16_nhwc_mb1ic36ih6iw5oc10kh3ph1+constant", "mma", {"bk": 128}),
    ("f8_e4m3f8_e4m3f32_tf32_nhwc_g2mb1ic72ih5iw4oc42kh3ph1", "wgmma", {"stages": 4}),
    ("f8_e5m2f8_e5m2f8_e5m2_nhwc_mb1ic48ih5iw4oc70kh3ph1+residual+constant", "wgmma", {"bk": 128, "bn": 64}),
    ("f8_e4m3f8_e4m3bf16_nhwc_mb2ic144ih5iw6oc30kh2ph1+residual", "tma", {"bk": 128}),
    ("f8_e4m3f8_e4m3f16_nhwc_g2mb2ic128ih7iw9oc40kh2sh2ph1+residual", "tma", {"bm": 128, "wm": 2}),
    ("f8_e5m2f8_e5m2f8_e4m3_nhwc_mb2ic16iw19oc24kw5pw2", "tma", {}),
    # sums of four slices, of eight, then of one more
    ("f8_e4m3f8_e4m3f8_e4m3_nhwc_mb2ic64ih5iw4oc32kh3ph1+residual", "tma", {}),
    ("f8_e4m3f8_e4m3f8_e5m2_nhwc_mb2ic64ih5iw4oc32kh3ph1", "tma", {"bn": 64}),
    # more sums than registers, so in two groups of columns
    ("f8_e4m3f8_e4m3bf16_nhwc_mb1ic80iw9oc200", "tma", {"bn": 256}),
    ("f8_e4m3f8_e4m3f8_e5m2_nhwc_mb1ic80ih5iw6oc20kh3ph1ph_r0dh2dw2pw2", "halo", {}),
    ("f8_e4m3f8_e4m3f32_tf32_nhwc_mb1ic64ih5iw13oc32kh2ph1+residual+constant", "halo", {}),
]


class Emulated(Int8):
    """The solver with plans in plain C."""

    name, fuses, exact, quantized = "nvidia.int8", frozenset({"bias", "residual"}), True, True

    def plan(self, context, problem, config):
        return Int8Plan(context, problem, config, emulate=True)


@pytest.mark.parametrize(
    ("text", "engine", "extra"), PRODUCTS + FLOATS, ids=[f"{e}-{t}" for t, e, _ in PRODUCTS + FLOATS]
)
def test_bits_are_the_references(queue, text, engine, extra):
    problem, config, solver = ConvProblem.parse(text), {**SMALL[engine], "engine": engine, **extra}, Emulated()
    assert solver.limits(problem, HOPPER) is None
    assert tiling_of(problem, Int8Tile.of(config)).misfit is None
    stated = solver.workspace(problem, HOPPER, config)
    Examination(solver, problem, config, stated, queue).run(False)


@pytest.mark.parametrize("out", ["u8", "s8"])
def test_a_residual_over_any_scale(queue, out):
    """The quotient by y's scale is exact to the last number, and what is beyond y's range saturates."""
    problem = ConvProblem.parse(f"u8s8{out}_nhwc_mb2ic16ih6iw7oc32kh1+residual")
    tried = Examination(Emulated(), problem, {**SMALL["mma"], "engine": "mma"}, None, queue)
    for exponent, apart in itertools.product((-140, -126, -45, 0, 38, 90, 110), (1.0, 1e-9, 1e9)):
        operands, scale = random_operands(problem, 1), 1.37 * 2.0**exponent
        w_scale = float(np.clip(scale * apart / 700, 2e-45, 3e38))
        given = {"w_scale": w_scale, "residual_scale": scale / 3, "y_scale": scale}
        given |= {"y_zero_point": 7, "residual_zero_point": -3 if out == "s8" else 90, "dtype": problem.out_dtype}
        quantization = Quantization(**given)
        operands["bias"] = quantization.table(problem.oc, residual=True)
        with np.errstate(over="ignore"):
            expected = reference.compute(problem, **operands)
        assert np.array_equal(tried.compute(operands), expected), (exponent, apart)


WRONG = {
    # a sum, a zero point and a residual that are off by one step
    "int8": (("X_ZERO(table) * (uint)", "(X_ZERO(table) - 1) * (uint)"), ("NUMBER(4)", "NUMBER(5)"),
             ("= (words[1] & 1)", "= 2 + (words[1] & 1)")),
    # a bias, a residual and a scale that are off, and sums of one slice alone
    "float8": (("as_float(offset->each[i])", "2.0f"), ("NUMBER(4)", "NUMBER(5)"),
               ("NUMBER(14)), NUMBER(15)", "NUMBER(14)), NUMBER(14)"), ("] += sum[i]", "] = sum[i]")),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["", "_wgmma", "_tma", "_halo"])
@pytest.mark.parametrize("kind", WRONG)
def test_the_probe_looks_at_numbers(queue, monkeypatch, kind, engine):
    """What is off is seen."""
    sound = Int8Plan.product_text
    monkeypatch.setattr("convdispatch_nvidia.int8.solver.Int8Plan", functools.partial(Int8Plan, emulate=True))
    assert probe._probe_failure(queue.context, kind + engine) is None
    for right, wrong in WRONG[kind]:
        assert right in sound(probe._plan(queue.context, kind + engine)[1])
        monkeypatch.setattr(Int8Plan, "product_text", lambda plan, a=right, b=wrong: sound(plan).replace(a, b))
        assert probe._probe_failure(queue.context, kind + engine) == "the probe computed wrong results", right
        monkeypatch.setattr(Int8Plan, "product_text", sound)


@pytest.mark.parametrize("engine", SMALL)
def test_sums_of_float8_leave_the_tensor_cores(queue, engine):
    """2304 products: the last 1792 are lost in 14 bits of the sum of the first 512."""
    bits = 128 if engine != "halo" else 64
    problem = ConvProblem.parse("f8_e4m3f8_e4m3f32_tf32_nhwc_mb1ic768ih3iw3oc32kw3kh1")
    tried = Examination(Emulated(), problem, {**SMALL[engine], "engine": engine, "bk": bits}, None, queue)
    operands = random_operands(problem, 1)
    x, w = np.ones(problem.x_shape), np.ones(problem.w_shape)
    x[:, :, 0, :512] = w[:, :, 0, :512] = 8
    operands |= {"x": x.astype(operands["x"].dtype), "w": w.astype(operands["w"].dtype)}
    operands["bias"] = Quantization(dtype="float32").float8_table(problem.oc)
    assert np.array_equal(tried.compute(operands), np.full(problem.y_shape, 512 * 64 + 1792))


@pytest.mark.parametrize("out", ["float8_e4m3", "float8_e5m2"])
def test_the_sums_of_float8_results_leave_early_enough(out):
    """Truncation loses at most half of what rounding can: half a unit in the last place, which is eps / 4 or more."""
    products, least = tilings.NARROW_PROMOTED_PRODUCTS[out], float(ml_dtypes.finfo(numpy_dtype(out)).eps) / 4
    assert products * 2**-14 <= least / 2 < 2 * products * 2**-14
    assert products > tilings.PROMOTED_PRODUCTS


@pytest.mark.parametrize("products", [128, 256, 512, 4096])
def test_what_truncated_sums_lose(queue, monkeypatch, products):
    """2**-14 of a sum for each product that stays in the tensor cores, at most; all of 2048 products lose far more."""
    monkeypatch.setattr(tilings, "PROMOTED_PRODUCTS", products)
    # Each number has a problem of its own, because texts are cached by problem and tile.
    problem = ConvProblem.parse(f"f8_e4m3f8_e4m3f32_tf32_nhwc_mb{products // 128}ic2048ih1iw2oc32")
    tried = Examination(Emulated(), problem, {**GROUP, "bk": 128, "engine": "tma"}, None, queue)
    operands, rng = random_operands(problem, 1), np.random.default_rng(3)
    operands |= {name: rng.uniform(0.5, 1.5, operands[name].shape).astype(operands[name].dtype) for name in "xw"}
    operands["bias"] = Quantization(dtype="float32").float8_table(problem.oc)
    x, w = (operands[name].astype(np.float64) for name in "xw")
    exact = np.einsum("nhwc,oc->nhwo", x, w[:, 0, 0])
    lost = (exact - tried.compute(operands)) / exact
    assert lost.min() >= 0
    assert lost.max() <= products * 2**-14
    assert (lost.mean() > 0.01) == (products > 2048)


def test_column_groups_of_float8_are_the_fewest_that_fit():
    problem = ConvProblem.parse("f8_e4m3f8_e4m3f8_e4m3_nhwc_mb32ic256ih28oc768kh3ph1")
    groups = {(64, 192): 1, (64, 256): 2, (128, 128): 1, (128, 192): 1, (128, 256): 2}
    for (bm, bn), expected in groups.items():
        tiling = tiling_of(problem, Int8Tile(bm, bn, bm // 64, 1, 128, 3, "tma"))
        assert (tiling.column_groups, tiling.misfit) == (expected, None), (bm, bn)
        assert tiling.instructions.wgmma.columns == bn // expected
        # Where two groups of warps multiply, and need it, they take over registers of the warps that copy.
        moved = tiling.moved_registers
        assert moved == ((40, 232) if (bm, bn) in ((128, 192), (128, 256)) else None)
        assert tiling.copying_items == (128 if moved else 32)
    assert tiling_of(problem, Int8Tile(192, 128, 3, 1, 128, 3, "tma")).misfit == "more sums than registers"
    integers = ConvProblem.parse("u8s8u8_nhwc_mb32ic256ih28oc768kh3ph1")
    assert tiling_of(integers, Int8Tile(128, 256, 2, 1, 128, 3, "tma")).column_groups == 1


def test_on_device(queue):
    """Where the device has tensor cores: the instructions themselves."""
    info, solver = runtime.device_info(queue.device), plugins().solvers["nvidia.int8"]
    for text, _, _ in PRODUCTS + FLOATS:
        problem = ConvProblem.parse(text)
        refused = solver.rejects(problem, info)
        if refused is not None:
            pytest.skip(refused)
        for config in list(solver.configs(problem, info)):
            Examination(solver, problem, config, solver.workspace(problem, info, config), queue).run(False)
