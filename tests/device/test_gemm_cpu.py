"""The generated matrix product on CPUs: its tiles and passes, what a work item packs, what it asks for ahead."""

from __future__ import annotations

import dataclasses

import pytest
from products import (
    SMALL_CPU,
    SPLIT_AXES,
    choose,
    dense,
    run,
)

from convdispatch.device import runtime
from convdispatch.device.gemm import Axis, Epilogue, GemmSpec, Matrix
from convdispatch.device.gemm.configs import cpu_configs
from convdispatch.device.gemm.cost import product_cost
from convdispatch.device.gemm.source import gemm_text


@pytest.mark.parametrize("kc", [16, 23])
@pytest.mark.parametrize("accumulate", [False, True])
def test_passes_over_k(queue, device, kc, accumulate):
    spec = dense(15, 70, 64, 2, epilogue=Epilogue(accumulate=accumulate, bias="n"))
    run(queue, spec, choose("cpu", spec, device) | {"kc": kc, "mt": 2, "np": 2, "bt": 2})


@pytest.mark.parametrize(
    ("lanes", "mr", "nv", "ku"), [(16, 6, 4, 1), (16, 28, 1, 1), (8, 6, 2, 1), (8, 1, 2, 4), (4, 4, 1, 2)]
)
@pytest.mark.parametrize("packs", [(False, False), (True, True)])
def test_register_tiles(queue, device, lanes, mr, nv, ku, packs):
    spec = dense(29, 139, 37)
    config = choose("cpu", spec, device) | {"lanes": lanes, "mr": mr, "nv": nv, "ku": ku, "mt": 2, "np": 2}
    run(queue, spec, config | dict(zip(("pack_a", "pack_b"), packs, strict=True)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("mr", "nv", "ku", "k", "kc"), [(6, 4, 1, 100, 100), (4, 2, 1, 96, 41), (3, 1, 2, 83, 83)])
def test_rows_asked_for_ahead(queue, device, dtype, mr, nv, ku, k, kc):
    """Whole lines of a row, a rest, and passes that begin within a line; rows of A lie apart or side by side."""
    lanes = 16 if dtype == "float32" else 8
    for step in (k, k + 5):
        spec = dense(4003, 70, k, 1, "nnn", dtype)
        spec = dataclasses.replace(spec, a=Matrix(Axis(step), Axis(1)))
        config = choose("cpu", spec, device) | {"swap": False, "pack_a": False, "pack_b": True, "split": 1, "kc": kc}
        config |= {"lanes": lanes, "mr": mr, "nv": nv, "ku": ku, "mt": 200, "np": 2}
        packed = dataclasses.replace(spec, b_packed=True)
        assert "AHEAD(pa0" in gemm_text(packed, config)
        assert "AHEAD(pa0" not in gemm_text(dataclasses.replace(packed, m=40), config)
        run(queue, spec, config)


@pytest.mark.parametrize(("k", "kc", "panels"), [(100, 100, 3), (101, 64, 2)])
@pytest.mark.parametrize("pack", [False, "local"])
def test_panels_asked_for_ahead(queue, device, k, kc, panels, pack):
    """Each panel's lines by the tiles of the one before, the next k's first ones by those of the last."""
    spec = dense(21, 3001, k, 1, "nnn")
    config = choose("cpu", spec, device) | {"swap": False, "pack_a": False, "pack_b": pack, "split": 1, "kc": kc}
    config |= {"lanes": 16, "mr": 6, "nv": 3, "ku": 1, "mt": 2, "np": panels}
    assert "AHEAD(ahead" in gemm_text(spec, config)
    assert "AHEAD(ahead" not in gemm_text(dataclasses.replace(spec, n=200), config)
    run(queue, spec, config)


@pytest.mark.parametrize("simd", [8, 16])
@pytest.mark.parametrize("sizes", [(64, 200, 20011), (200, 64, 20011), (24, 144, 40000)])
def test_sums_longer_than_their_sides(queue, device, simd, sizes):
    """dw of a 1x1 layer, channels last: parts of the sum, both operands where they lie, each read once."""
    m, n, k = sizes
    spec = dense(m, n, k, 1, "tnn")
    chosen = min(
        cpu_configs(spec, dataclasses.replace(SMALL_CPU, simd_width=simd)), key=lambda c: product_cost(spec, c)
    )
    assert chosen["split"] > 1
    assert not chosen["pack_a"]
    assert not chosen["pack_b"]
    read = spec.swapped if chosen["swap"] else spec
    assert chosen["np"] * chosen["nv"] * simd >= read.n
    text = gemm_text(read, chosen)
    assert text.count("AHEAD(pa0") >= 1
    assert "AHEAD(ahead" in text
    run(queue, spec, chosen)


@pytest.mark.parametrize("case", ["b nnn float32 64", "b ntn float32 16", "b nnn bfloat16 64", "b ttn float64 23",
                                  "a nnn float16 64", "a nnn bfloat16 83"])  # fmt: skip
def test_what_the_work_item_packs(queue, device, case):
    side, layout, dtype, kc = case.split()
    if why := runtime.device_info(device).supports(dtype):
        pytest.skip(why)
    spec = dense(15, 139, 64 if side == "b" else int(kc), 2, layout, dtype)
    config = choose("cpu", spec, device)
    assert side == "b" or config["swap"] or config["pack_a"] == "local"  # 16 bits: rows need no pass of their own
    run(queue, spec, config | {"kc": int(kc), "mt": 2, "np": 2, f"pack_{side}": "local", "swap": False})


@pytest.mark.parametrize("case", ["images as columns", "short runs", "images in the sum"])
def test_split_columns_packed_by_the_work_item(queue, device, case):
    m, n, k, batch, a, b, c = SPLIT_AXES[case]
    spec = GemmSpec(m, n, k, batch, "float32", a, b, c)
    run(queue, spec, choose("cpu", spec, device) | {"lanes": 4, "nv": 4, "mr": 3, "pack_b": "local", "swap": False})
