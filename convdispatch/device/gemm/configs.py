"""Tuning choices of a matrix product for a device, ordered so that the first is the default."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ...api.cpu import cdiv
from ...api.device import DeviceInfo
from ...api.dtypes import DTYPES
from .layout import direct
from .spec import GemmSpec

B_PASS_BYTES = 512 * 1024
"""The most bytes of B that one pass over the rows of A may occupy in a core's second-level cache."""
LOCAL_B_BYTES = 128 * 1024
"""The most bytes of local memory for a block of B that a work item packs itself."""
LOCAL_A_BYTES = 32 * 1024
"""The most bytes of local memory for a tile's rows of A, which should stay in the first-level cache."""
ITEM_FLOPS = 1_000_000
"""Operations that a CPU work item should do, because starting it costs some hundred nanoseconds."""
SPLIT_FLOPS = 1_000_000
"""A product of fewer operations is not split, because adding the parts would cost more than other cores save."""
TALL_ROWS = 128
"""Rows of C that one work item computes when the sum over k is long (much longer than C's sides)."""
PARTS_BYTES = 4 << 20
"""The most bytes of the partial results of a long sum over k that is split among work items."""
# Each row is a work group's tile: (bm, bn, bk, tm, tn, ln, stages, percent of an H200's peak that a product of 4096
# cubed reaches with it).
_GPU_TILES = (
    (64, 128, 16, 8, 8, 8, 2, 70),
    (128, 128, 8, 8, 8, 8, 2, 69),
    (64, 64, 16, 8, 8, 8, 2, 67),
    (256, 128, 8, 16, 8, 8, 2, 65),
    (128, 256, 8, 8, 16, 8, 2, 64),
    (128, 64, 16, 8, 4, 8, 2, 62),
    (128, 128, 16, 8, 8, 8, 2, 62),
    (128, 128, 16, 8, 8, 4, 2, 62),
    (32, 64, 16, 4, 8, 8, 2, 54),
    (64, 64, 16, 4, 4, 8, 2, 50),
    (16, 128, 16, 4, 8, 16, 2, 50),
    (32, 32, 16, 4, 4, 8, 2, 43),
    (4, 256, 8, 4, 4, 32, 2, 23),
)


def configs(spec: GemmSpec, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Yield the configurations of ``spec`` for ``device`` as dicts of JSON values, the default first."""
    return cpu_configs(spec, device) if device.type == "cpu" else gpu_configs(spec, device)


def _swap(spec: GemmSpec) -> bool:
    """Whether only the transposed product writes contiguous elements of C: C has stride 1 along rows, not columns."""
    c = spec.simplified.c
    return c.row.stride == 1 and spec.m > 1 and not (c.col.stride == 1 and spec.n > 1)


# --- configurations for CPUs ----------------------------------------------------------------------------------------


def cpu_configs(spec: GemmSpec, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Register tiles that fit the device's registers, cheapest first by a count of their instructions."""
    # PoCL reports 16 lanes where its compiler only knows AVX2, and its cache loses kernels that call a built-in
    # function of a 16-lane vector; with 8 lanes it is twice as fast.
    simd = min(device.simd_width, 8) if device.vendor == "pocl" else device.simd_width
    lanes = max(4, min(16, simd)) * 4 // spec.accumulator_size
    registers = 32 if simd >= 16 else 16
    specs = {swap: (spec.swapped if swap else spec).simplified for swap in (False, True)}
    choices = [
        (cost, swap, mr, nv)
        for swap, inner in specs.items()
        for cost, mr, nv in _tiles(inner.m, inner.n, inner.k, lanes, registers, inner.c.col.stride != 1)
    ]
    choices.sort()
    # The candidates include the transposed product, because these cycle counts leave out scattered sums and packing.
    opposite = [choice for choice in choices[6:] if choice[1] != choices[0][1]][:2]
    for cost, swap, mr, nv in choices[:6] + (opposite if len({choice[1] for choice in choices[:6]}) < 2 else []):
        if cost > 1.6 * choices[0][0]:
            break
        yield from _cpu_blocks(specs[swap], device, swap, mr, nv, lanes)


@functools.lru_cache(maxsize=1024)
def _tiles(m: int, n: int, k: int, lanes: int, registers: int, scatter: bool) -> list[tuple[float, int, int]]:
    """Register tiles as (cycles, rows, vectors): a batch's cycles are estimated from the multiply-adds and loads of all
    tiles, edges included, and the stores of C."""
    tiles, heights = [], sorted({*range(1, 9), 10, 12, 14, 24, m})
    store = lanes * 2 if scatter else 2
    for nv in range(1, 9):
        if nv > 1 and (nv - 1) * lanes >= n:
            break
        full_n, rest_n = divmod(n, nv * lanes)
        blocks = [(vectors, count) for vectors, count in ((nv, full_n), (cdiv(rest_n, lanes), 1)) if vectors and count]
        for mr in heights:
            # Register tiles of several vectors spill when their sums take more than three quarters of the registers.
            if mr > m or mr * nv + nv + 1 > registers or (nv > 1 and mr * nv > registers * 3 // 4):
                continue
            full_m, rest_m = divmod(m, mr)
            total = 0.0
            for rows, count_m in ((mr, full_m), (rest_m, 1)) if rest_m else ((mr, full_m),):
                for vectors, count_n in blocks:
                    total += count_m * count_n * (_step(rows, vectors) * k + rows * vectors * store + 20)
            # Tall tiles cost more: many rows of A are at many addresses that share a cache set, or A needs packing.
            tiles.append((total * (1.06 if mr > 8 else 1.0 + 0.002 * abs(mr - 6)), mr, nv))
    return tiles


@functools.cache
def _step(rows: int, vectors: int) -> float:
    """Cycles that a register tile of ``rows`` by ``vectors`` takes for one step of k."""
    sums = rows * vectors
    return max(sums, (rows + vectors) * 0.7, 4 * sums / (sums * _unroll(rows, vectors)))


def _unroll(rows: int, vectors: int) -> int:
    """The number of independent sums over k of a register tile, so that about eight additions are in flight."""
    return max(1, min(4, 8 // (rows * vectors)))


def _cpu_blocks(
    spec: GemmSpec, device: DeviceInfo, swap: bool, mr: int, nv: int, lanes: int
) -> Iterator[dict[str, Any]]:
    """Blocking, packing and splitting for one register tile; ``spec`` is simplified and swapped."""
    nr = nv * lanes
    tiles, panels = cdiv(spec.m, mr), cdiv(spec.n, nr)
    narrow = DTYPES[spec.dtype].widened
    direct_a, direct_b = direct(spec, "a", lanes), direct(spec, "b", lanes)
    items = 8 * device.compute_units
    split = 1
    work = 2 * spec.m * spec.n * spec.k * spec.batch
    if tiles * panels * spec.batch < 4 * device.compute_units and spec.k >= 1024 and work >= SPLIT_FLOPS:
        split = min(cdiv(items, tiles * panels * spec.batch), cdiv(spec.k, 512))
    ks = cdiv(cdiv(spec.k, split), 16) * 16
    split = cdiv(spec.k, ks)
    kc = B_PASS_BYTES // (nr * spec.accumulator_size) // 16 * 16
    if narrow and split == 1:
        kc = spec.k  # 16-bit C cannot hold partial sums, so one pass covers all of k.
    kc = min(kc, spec.k if split == 1 else ks)
    # All passes over k have about equal length.
    kc = cdiv(spec.k if split == 1 else ks, cdiv(spec.k if split == 1 else ks, kc))
    mt = max(1, min(tiles, cdiv(tiles, cdiv(items, panels * spec.batch * split))))
    flops = 2 * min(spec.m, mt * mr) * min(nr, spec.n) * min(spec.k, ks)
    item_panels = max(1, min(panels, ITEM_FLOPS // flops, panels * spec.batch * split * cdiv(tiles, mt) // items))
    batches = 1
    if item_panels == panels:
        batches = max(1, min(spec.batch, ITEM_FLOPS // (flops * panels), spec.batch * split * cdiv(tiles, mt) // items))
    config = {"kind": "cpu", "swap": swap, "lanes": lanes, "mr": mr, "nv": nv, "ku": _unroll(min(mr, spec.m), nv)}
    config |= {"kc": kc, "mt": mt, "np": item_panels, "bt": batches, "split": split, "ks": ks}
    # Packing pays when an element is read often: an element of B once per tile of rows, of A once per panel of columns.
    pack_a = not spec.a_packed and not (direct_a and (panels <= 2 or (spec.a.col.stride == 1 and mr <= 8)))
    pack_b = not spec.b_packed and not (direct_b and tiles <= 24)
    depth = spec.k if split == 1 else ks
    rows_size = mr * kc * spec.accumulator_size
    a_unit = spec.a.col.plain and spec.a.col.stride == 1
    local_bytes = device.local_mem_size
    if narrow and split == 1 and a_unit and not spec.a_packed and rows_size <= min(LOCAL_A_BYTES, local_bytes // 2):
        pack_a, local_bytes = "local", local_bytes - rows_size
    local_kc = min(depth, min(local_bytes, LOCAL_B_BYTES) // (nr * spec.accumulator_size))
    local_kc = 0 if local_kc < min(depth, 64) or (narrow and split == 1 and local_kc < depth) else local_kc
    local_kc = local_kc and cdiv(depth, cdiv(depth, local_kc))
    if direct_a and direct_b and not (spec.a_packed or spec.b_packed) and (long_sum := _long_sum(spec, mr, nr, items)):
        yield {**config, **long_sum, "pack_a": False, "pack_b": False}
    # With few tiles of rows, a separate packing pass over B would cost more than the product that reads it.
    if pack_b and local_kc and tiles <= 24:
        yield {**config, "pack_a": pack_a, "pack_b": "local", "kc": local_kc}
    yield {**config, "pack_a": pack_a, "pack_b": pack_b}
    if pack_a == "local":
        yield {**config, "pack_a": True, "pack_b": pack_b}
    if direct_a and not spec.a_packed:
        yield {**config, "pack_a": not pack_a, "pack_b": pack_b}
    if not spec.b_packed and local_kc and not (pack_b and tiles <= 24):
        yield {**config, "pack_a": pack_a, "pack_b": "local", "kc": local_kc}
    if direct_b and not spec.b_packed:
        yield {**config, "pack_a": pack_a, "pack_b": not pack_b}
    if not narrow and kc > 512:
        yield {**config, "pack_a": pack_a, "pack_b": pack_b, "kc": cdiv(kc, cdiv(kc, 384))}


def _long_sum(spec: GemmSpec, mr: int, nr: int, wanted_items: int) -> dict[str, int] | None:
    """The blocking of a sum over k that is much longer than C's sides; None if splitting it is not worthwhile.

    A work item computes a part of the sum for all columns of C. It reads B from memory once, and a block of A's rows
    from the first-level cache.
    """
    tiles, size = cdiv(spec.m, mr), spec.accumulator_size
    sweeps = cdiv(spec.m, TALL_ROWS)
    max_parts = PARTS_BYTES // (spec.m * spec.n * spec.batch * size)
    split = min(cdiv(wanted_items, sweeps * spec.batch), spec.k // 256, max_parts)
    if split < 2 or spec.k < 4 * max(spec.m, spec.n):
        return None
    mt = cdiv(tiles, sweeps)
    ks = cdiv(cdiv(spec.k, split), 16) * 16
    kc = cdiv(ks, cdiv(ks, max(48, LOCAL_A_BYTES // (mt * mr * size))))
    return {"kc": kc, "mt": mt, "np": cdiv(spec.n, nr), "bt": 1, "split": cdiv(spec.k, ks), "ks": ks}


# --- configurations for GPUs ----------------------------------------------------------------------------------------


def gpu_configs(spec: GemmSpec, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Tiles that fit the device's limits, ordered by an estimate of idle units, padding and the tile's own speed."""
    swap = _swap(spec)
    inner = (spec.swapped if swap else spec).simplified
    choices = []
    for order, (bm, bn, bk, tm, tn, ln, stages, speed) in enumerate(_GPU_TILES):
        items = (bm // tm) * (bn // tn)
        local = (bm + bn + 8) * bk * spec.accumulator_size
        if items > device.max_work_group_size or items > device.max_work_item_sizes[0]:
            continue
        if stages * local > device.local_mem_size:
            stages = 1
        if stages * local > device.local_mem_size:
            continue
        tile = {"bm": bm, "bn": bn, "bk": bk, "tm": tm, "tn": tn, "ln": ln, "stages": stages}
        choices.append((_gpu_cost(inner, device, tile) / speed, order, tile))
    choices.sort(key=lambda choice: choice[:2])
    for _, _, tile in choices:
        split, ks = _gpu_split(inner, device, tile)
        yield {"kind": "gpu", "swap": swap, **tile, "split": split, "ks": ks}
        if split > 1:
            yield {"kind": "gpu", "swap": swap, **tile, "split": 1, "ks": inner.k}


def _gpu_split(spec: GemmSpec, device: DeviceInfo, tile: dict[str, int]) -> tuple[int, int]:
    """Return the number and length of the parts of the sum over k, which fill the GPU if the tiles of C do not."""
    groups = cdiv(spec.m, tile["bm"]) * cdiv(spec.n, tile["bn"]) * spec.batch
    split = 1
    if groups < device.compute_units:
        split = max(1, min(2 * device.compute_units // groups, spec.k // 256, 64))
    ks = cdiv(cdiv(spec.k, split), 16) * 16
    return cdiv(spec.k, ks), ks


def _gpu_cost(spec: GemmSpec, device: DeviceInfo, tile: dict[str, int]) -> float:
    """Multiply-adds of the busiest compute unit, including those of padding and of filling the pipeline."""
    bm, bn = tile["bm"], tile["bn"]
    split, ks = _gpu_split(spec, device, tile)
    groups = cdiv(spec.m, bm) * cdiv(spec.n, bn) * spec.batch * split
    return max(groups / device.compute_units, 1) * bm * bn * (ks + 32)
