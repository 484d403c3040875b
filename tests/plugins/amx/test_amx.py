"""amx: numbers in planes, refusals, instructions. Places in rows: ``test_amx_geometry.py``; whole convolutions:
``test_amx_kernels.py``.

Nothing here needs matrix registers: where a processor has them, what it computes is compared with ``as_amx.py`` bit by
bit.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import struct
import types

import convdispatch_amx
import numpy as np
import processors
import pyopencl as cl
import pytest
from as_amx import native, translated
from checking import numpy_dtype
from convdispatch_amx import NEEDED, instructions
from convdispatch_amx.instructions import PRODUCTS, planes_of

from convdispatch import ConvProblem
from convdispatch.api import cpu, define, kernel_text, storage_macros
from convdispatch.api.device import DeviceInfo
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

CPU = DeviceInfo("a CPU", "intel", "cpu", "", simd_width=16, compute_units=4)


# --- planes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "planes"),
    [
        ("f32_mb1ic8ih4oc8", 2),
        ("f32_tf32_mb1ic8ih4oc8", 2),
        ("f32_fast_mb1ic8ih4oc8", 2),
        ("f32_ieee_mb1ic8ih4oc8", 0),
        ("f32_mb1ic8ih4oc8+tanh", 3),
        ("f32_mb1ic8ih4oc8+silu", 2),
        ("f16_mb1ic8ih4oc8+tanh", 2),
        ("bf16_mb1ic8ih4oc8", 1),
    ],
)
def test_planes_of(text, planes):
    assert planes_of(ConvProblem.parse(text)) == planes


def test_products_reach_the_last_bit():
    """Each pair once, and every one that is no smaller than the sum of the others' last bit."""
    for planes, pairs in PRODUCTS.items():
        wanted = {pair for pair in itertools.product(range(planes), repeat=2) if sum(pair) < planes}
        assert sorted(pairs) == sorted(wanted)


SPLIT = """
kernel void planes(global const REAL *x, global uint *p) {
  uint16 found[3];
  const int at = 16 * get_global_id(0);
  split(LOADV(x + at), found);
  for (int plane = 0; plane < PLANES; ++plane) *(global upper16 *)((global ushort *)p + PLANES * at + 16 * plane) =
    convert_ushort16(found[plane] >> 16);
}
"""


def split(queue, values: np.ndarray, dtype: str, planes: int) -> np.ndarray:
    """The planes of numbers in float64, by the kernels' own text."""
    size = -(-len(values) // 16) * 16
    text = storage_macros(dtype) + define(V="float16", LANES=16, PLANES=planes)
    program = cl.Program(queue.context, text + kernel_text(convdispatch_amx.__name__, "split.cl") + SPLIT).build()
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    x = cl.Buffer(queue.context, flags, hostbuf=np.resize(values, size).astype(numpy_dtype(dtype)))
    found = np.zeros((size // 16, planes, 16), np.uint16)
    p = cl.Buffer(queue.context, flags, hostbuf=found)
    program.planes(queue, (size // 16,), (1,), x, p)
    cl.enqueue_copy(queue, found, p)
    wide = (found.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return wide.transpose(1, 0, 2).reshape(planes, size)[:, : len(values)]


@pytest.mark.parametrize(("dtype", "planes"), [("float32", 2), ("float32", 3), ("float16", 2), ("bfloat16", 1)])
def test_planes_hold_a_number(queue, dtype, planes):
    """The first is the nearest bfloat16, what is left is small, and three hold every bit of a float32."""
    random = np.random.default_rng(0)
    scales = 2.0 ** random.integers(-12 if dtype == "float16" else -90, 15 if dtype == "float16" else 120, 4096)
    values = (random.standard_normal(4096) * scales).astype(numpy_dtype(dtype))
    wide = values.astype(np.float64)
    found = split(queue, values, dtype, planes)
    np.testing.assert_array_equal(found[0], values.astype(numpy_dtype("bfloat16")).astype(np.float64))
    left = np.abs(wide - found.sum(axis=0)) / np.abs(wide)
    exact = planes == 3 or dtype != "float32"
    assert (left == 0).all() if exact else 0 < left.max() <= 2.0**-17


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("planes", [2, 3])
def test_what_is_finite_stays_so(queue, planes):
    values = np.array([np.inf, -np.inf, np.nan, LARGEST, -LARGEST, 3.3953e38, 0.0, -0.0, 1e-38, 1e-45], np.float32)
    values[2:3].view(np.uint32)[0] = 0x7F800001  # a NaN whose last bit alone says that it is no infinity
    found = split(queue, values, "float32", planes)
    assert list(found[0, :2]) == [np.inf, -np.inf]
    assert np.isnan(found[0, 2])
    assert not found[1:, :3].any()
    assert np.isfinite(found[:, 3:]).all()
    np.testing.assert_allclose(found[:, 3:7].sum(axis=0), values[3:7].astype(np.float64), rtol=2.0**-15)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """``machine(flags, system, machine, granted)``: why such a one has no matrix registers, or no bfloat16 vectors."""

    def ask(flags="amx_tile amx_bf16 avx512f", system="Linux", name="x86_64", granted=0, vectors=False):
        monkeypatch.setattr(cpu.platform, "system", lambda: system)
        monkeypatch.setattr(cpu.platform, "machine", lambda: name)
        monkeypatch.setattr(cpu, "flags", lambda: frozenset(flags.split()))
        library = types.SimpleNamespace(syscall=lambda *words: granted if words == (158, 0x1023, 18) else -2)
        monkeypatch.setattr(cpu.ctypes, "CDLL", lambda *_, **__: pytest.fail("asks the system") if vectors else library)
        ctypes.set_errno(22)
        return cpu.lacking.__wrapped__(*NEEDED[vectors])

    return ask


described = pytest.mark.skipif(processors.became is not None, reason="what is read of a processor is described")


@described
def test_missing(machine):
    assert machine() is None
    assert machine("avx512f") == "processors with amx_tile and amx_bf16 only, got one without amx_tile"
    assert machine("amx_tile amx_int8") == "processors with amx_tile and amx_bf16 only, got one without amx_bf16"
    assert machine("") == "processors with amx_tile and amx_bf16 only, got one without amx_tile"
    assert machine(system="Darwin", name="arm64") == "x86-64 under Linux only, got arm64 under Darwin"
    assert machine(name="aarch64") == "x86-64 under Linux only, got aarch64 under Linux"
    assert machine(system="Windows") == "x86-64 under Linux only, got x86_64 under Windows"
    assert machine(granted=-1) == "the system grants no matrix registers (errno 22)"
    assert machine("avx512f avx512_bf16", vectors=True) is None
    without = "processors with avx512_bf16 only, got one without avx512_bf16"
    assert machine("avx512f amx_bf16", vectors=True) == without
    assert machine("avx512_bf16", "Windows", vectors=True) == "x86-64 under Linux only, got x86_64 under Windows"


@described
def test_flags_are_read(monkeypatch, tmp_path):
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor : 0\nflags\t\t: fpu amx_tile amx_bf16\n\nprocessor : 1\nflags : fpu\n")
    monkeypatch.setattr(cpu, "Path", lambda _: listed)
    assert cpu.flags() == {"fpu", "amx_tile", "amx_bf16"}
    monkeypatch.setattr(cpu, "Path", lambda _: tmp_path / "nothing")
    assert cpu.flags() == frozenset()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "gpu", "vendor": "nvidia"}, "cpu only, got gpu"),
        ({"vendor": "pocl"}, "Intel's runtime with vectors of 16 floats only, got pocl with 16"),
        (
            {"vendor": "oclgrind", "simd_width": 1},
            "Intel's runtime with vectors of 16 floats only, got oclgrind with 1",
        ),
        ({"simd_width": 8}, "Intel's runtime with vectors of 16 floats only, got intel with 8"),
    ],
)
def test_other_devices_are_refused_in_words(changes, words):
    problem = ConvProblem.parse("mb1ic16ih8oc16kh3")
    for name, solver in plugins().solvers.items():
        if name.startswith("amx."):
            assert solver.rejects(problem, dataclasses.replace(CPU, **changes)) == words


def test_every_device_answers():
    """Whatever is listed here: refused in words, or computed by Intel's runtime."""
    for device in runtime.devices():
        info = runtime.device_info(device)
        reason = plugins().solvers["amx.tiles"].rejects(ConvProblem.parse("mb1ic16ih8oc16kh3"), info)
        assert (reason is not None and "only, got" in reason) or info.vendor == "intel"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bwd_weights_mb1ic16ih8oc16kh3", "forward and data gradient only, got bwd_weights"),
        ("f32_ieee_mb1ic16ih8oc16kh3", "math float32, tf32 and fast only, got ieee"),
        ("mb0ic16ih8oc16kh3", "1 image or more, got 0"),
        ("mb1ic7ih8oc16kh3", "8 channels a group or more, got 7"),
        ("mb1ic16ih8oc7kh3", "8 channels a group or more, got 7"),
        ("g2mb1ic32ih8oc14kh3", "8 channels a group or more, got 7"),
        ("mb1ic8ih8oc8kh3", None),
        ("bwd_data_mb1ic8ih16oc8kh4sh4", None),
        ("bwd_data_mb1ic8ih16oc8kh5sh5", "strides of 16 phases at most, got 25"),
        ("mb1ic4096ih4oc8kh1", None),
        ("bf16_mb1ic2730ih4oc8kh7ph3", "4096 steps of 32 summed products at most, got 4214"),
        ("mb1ic32ih4iw40000oc8kh3ph1", "rows of 4194304 bytes for all channels of a group at most, got"),
        ("vectors bf16_mb1ic7ih8oc16kh3", "8 channels a group or more, got 7"),
        ("vectors bf16_mb1ic8ih8oc8kh3", None),
        ("vector_weights bwd_weights_bf16_mb1ic8ih8oc8kh3", None),
    ],
)
def test_rejects(text, words):
    name, _, text = text.rpartition(" ")
    reason = plugins().solvers[f"amx.{name or 'tiles'}"].solver.rejects(ConvProblem.parse(text), CPU)
    assert reason == words or (words.endswith("got") and reason.startswith(words))


# --- instructions -----------------------------------------------------------------------------------------------------


def test_the_tiles_are_whole():
    """Palette 1; eight tiles of 16 rows of 64 bytes; the rest, bytes that the manual reserves, are 0."""
    words = cpu.TILE_MACROS.partition("{")[2].partition("}")[0].replace("ul", "").split(",")
    made = struct.pack("<8Q", *(int(word, 0) for word in words))
    assert made[:16] == bytes([1]) + bytes(15)
    assert struct.unpack("<8H", made[16:32]) == (64,) * 8
    assert made[48:56] == bytes([16]) * 8
    assert not any(made[32:48] + made[56:])


def multiplied(queue, text: str, a: np.ndarray, b: np.ndarray, offsets, more: tuple, sums: np.ndarray) -> np.ndarray:
    """What ``product`` of the text makes of memory; in plain C where the text is."""
    text += "kernel void whole(global const uchar *a, global const uchar *b, global const int *offsets,\n"
    text += f"global float *sums) {{\nTILES_BEGIN();\nproduct(a, b, {', '.join(map(str, more))});\nTILES_END();\n}}\n"
    program = cl.Program(queue.context, text).build([] if "__asm__" in text else ["-cl-opt-disable"])
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    given = [cl.Buffer(queue.context, flags, hostbuf=array) for array in (a, b, np.array(offsets, np.int32), sums)]
    program.whole(queue, (1,), (1,), *given)
    result = np.empty_like(sums)
    cl.enqueue_copy(queue, result, given[3])
    return result


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("tiles", [(2, 2), (1, 2), (2, 1), (1, 1)], ids=str)
@pytest.mark.parametrize(
    ("planes", "listed", "lined"),
    [(1, "a", ""), (2, "b", ""), (3, "", ""), (1, "b", "b"), (2, "b", "b"), (3, "a", "a")],
)
def test_product(queue, device, planes, listed, lined, tiles, goes_on):
    """Sums of 32 by 32 over steps that lie anywhere, planes and tiles at any distance; on integers, exactly."""
    random, steps, rows = np.random.default_rng(planes), 3, {"a": 16 * tiles[0], "b": 16 * tiles[1]}
    where = {"row": 64 * planes, "plane": 64, "tile": 1024 * planes, "step": 2048 * planes}
    order, memory, values = [2, 0, 1], {}, {}
    for side in "ab":
        data = random.integers(-3, 4, (steps, planes, 32, 32)) * 2.0 ** -np.arange(planes)[:, None, None]
        values[side] = data  # [step][plane][row or column][summed]
        tile = data.reshape(steps, planes, 2, 16, 32)
        if side == "b":  # rows of B are pairs of summed indices
            tile = data.reshape(steps, planes, 2, 16, 16, 2).swapaxes(3, 4).reshape(steps, planes, 2, 16, 32)
        tile = tile.transpose((0, 3, 1, 2, 4) if side == lined else (0, 2, 3, 1, 4))  # lines hold both tiles of a plane
        memory[side] = np.ascontiguousarray(tile).astype(numpy_dtype("bfloat16"))
        if side == listed:
            memory[side] = np.ascontiguousarray(memory[side][order])
    offsets = [order.index(step) * where["step"] for step in range(steps)]
    before = random.integers(-9, 10, (32, 32)).astype(np.float32)
    expected = before.astype(np.float64) if goes_on else np.zeros((32, 32))
    for p, q in PRODUCTS[planes]:
        expected = expected + np.einsum("smk,snk->mn", values["a"][:, p], values["b"][:, q])
    expected[rows["a"] :], expected[:, rows["b"] :] = before[rows["a"] :], before[:, rows["b"] :]
    sides = [
        {"tile": 64}
        if side == lined
        else {key: value for key, value in where.items() if key != "step" or side != listed}
        for side in "ab"
    ]
    text = cpu.TILE_MACROS + instructions.product("product", planes, *sides, tiles, goes_on)
    more = (*(["offsets"] if listed else []), steps, "sums", *([128] if lined else []))
    held = [memory[side].view(np.uint8) for side in "ab"]
    np.testing.assert_array_equal(multiplied(queue, translated(text), *held, offsets, more, before), expected)
    if native(device) is None:
        np.testing.assert_array_equal(multiplied(queue, text, *held, offsets, more, before), expected)
        # Numbers of all sizes, also those that count as zero.
        noise = [random.standard_normal(each.shape) * 1e-19 ** random.random(each.shape) for each in memory.values()]
        held = [each.astype(numpy_dtype("bfloat16")).view(np.uint8) for each in noise]
        one, other = (multiplied(queue, each, *held, offsets, more, before) for each in (text, translated(text)))
        assert one.tobytes() == other.tobytes(), "the stand-in rounds otherwise than the processor"


@pytest.mark.parametrize("line", ["tdpfp16ps %%tmm6, %%tmm4, %%tmm0", "nop"])
def test_unknown_instructions_do_not_pass(line):
    with pytest.raises(AssertionError, match="does not know"):
        translated(f'__asm__ volatile("{line}" ::: "memory");')
