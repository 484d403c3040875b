"""The generated matrix product: exact on small integers, in every layout, epilogue and dtype, between guard zones."""

from __future__ import annotations

import dataclasses
import json

import ml_dtypes
import numpy as np
import pyopencl as cl
import pytest

from convdispatch.api.activation import apply_activation
from convdispatch.api.device import DeviceInfo
from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.device.gemm import Axis, Epilogue, GemmPlan, GemmSpec, Matrix, configs, packed_layout
from convdispatch.device.gemm.configs import cpu_configs, gpu_configs
from convdispatch.device.gemm.cost import product_cost
from convdispatch.device.gemm.source import gemm_text

GENERATORS = {"cpu": cpu_configs, "gpu": gpu_configs}
NUMPY = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SMALL_GPU = DeviceInfo("small", "arm", "gpu", "", max_work_group_size=256, max_work_item_sizes=(256, 256, 64),
                       local_mem_size=32768, compute_units=4)  # fmt: skip
SMALL_CPU = DeviceInfo("small", "intel", "cpu", "", compute_units=2, local_mem_size=256 << 10)
GUARD = 64  # elements before and after every operand


def places(matrix: Matrix, batch: int, rows: int, cols: int) -> np.ndarray:
    """Element offsets [batch, rows, cols] of an operand."""
    z, i, j = np.ogrid[:batch, :rows, :cols]
    return matrix.batch.offset(z) + matrix.row.offset(i) + matrix.col.offset(j)


def dense(m, n, k, batch=1, layout="nnn", dtype="float32", **rest) -> GemmSpec:
    """Contiguous operands; a letter for A, B and C: n row-major, t column-major."""

    def matrix(letter: str, rows: int, cols: int) -> Matrix:
        row, col = (Axis(cols), Axis(1)) if letter == "n" else (Axis(1), Axis(rows))
        return Matrix(row, col, Axis(rows * cols))

    a, b, c = (matrix(*args) for args in zip(layout, (m, k, m), (k, n, n), strict=True))
    return GemmSpec(m, n, k, batch, dtype, a, b, c, **rest)


class Operand:
    """An operand in a larger buffer: NaN wherever no element of it lives, so that a stray read shows."""

    def __init__(self, queue, at: np.ndarray, values: np.ndarray | None, dtype, offset: int = 0) -> None:
        self.queue, self.at, self.offset = queue, at + GUARD + offset, GUARD + offset
        size = -(-(int(self.at.max()) + 1 + GUARD) // 16) * 16
        self.before = np.full(size, np.nan, dtype)
        if values is not None:
            self.before[self.at] = values
        self.buffer = cl.Buffer(
            queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=self.before.view(np.uint8)
        )

    def now(self) -> np.ndarray:
        data = np.empty_like(self.before)
        cl.enqueue_copy(self.queue, data.view(np.uint8), self.buffer)
        return data

    def unchanged(self, except_at: np.ndarray | None = None) -> bool:
        old, new = self.before.copy(), self.now()
        if except_at is not None:
            old[except_at] = new[except_at] = 0
        return bool(np.array_equal(old.view(np.uint8), new.view(np.uint8)))


def pack(spec, config, letter, values, dtype) -> np.ndarray:
    """An operand [batch, i, k] in panels, by the published formula; NaN in the padding lanes."""
    layout = packed_layout(spec, config, letter)
    packed = np.full(layout.elements, np.nan, np.float64 if dtype == "float64" else np.float32)
    z, i, k = np.ogrid[: values.shape[0], : values.shape[1], : values.shape[2]]
    packed[layout.index(z, i, k)] = values
    assert layout.size == packed.nbytes
    return packed


def run(queue, spec: GemmSpec, config: dict, *, real: bool = False, offset: int = 0, seed: int = 0) -> None:
    """Compute ``spec`` and compare it with NumPy; every buffer is checked beyond the result, too."""
    config = json.loads(json.dumps(config))
    rng, dtype, epilogue = np.random.default_rng(seed), NUMPY[spec.dtype], spec.epilogue

    def operand(at: np.ndarray) -> Operand:
        values = rng.standard_normal(at.shape) if real else rng.integers(-3, 4, at.shape)
        return Operand(queue, at, values.astype(dtype), dtype, offset)

    a = operand(places(spec.a, spec.batch, spec.m, spec.k))
    b = operand(places(spec.b, spec.batch, spec.k, spec.n))
    c_at = places(spec.c, spec.batch, spec.m, spec.n)
    c = operand(c_at) if epilogue.accumulate else Operand(queue, c_at, None, dtype, offset)
    residual = operand(c_at) if epilogue.residual else None
    bias = None
    if epilogue.bias:
        z, i = np.ogrid[: spec.batch, : spec.m if epilogue.bias == "m" else spec.n]
        bias = operand(epilogue.bias_batch.offset(z) + i)

    wide = [np.float64(x.before[x.at].astype(np.float64)) for x in (a, b)]
    want = wide[0] @ wide[1]
    if bias is not None:
        values = bias.before[bias.at].astype(np.float64)
        want = want + (values[:, :, None] if epilogue.bias == "m" else values[:, None, :])
    if residual is not None:
        want = want + residual.before[residual.at].astype(np.float64)
    if epilogue.accumulate:
        want = want + c.before[c.at].astype(np.float64)
    want = apply_activation(epilogue.activation, want)

    plan = GemmPlan(queue.context, spec, config)
    given = {"a_offset": a.offset, "b_offset": b.offset}
    buffers = {"a": a.buffer, "b": b.buffer}
    for letter, values in (("a", wide[0]), ("b", wide[1].swapaxes(1, 2))):
        if getattr(spec, letter + "_packed"):
            form = pack(spec, config, letter, values, spec.dtype)
            held = Operand(queue, np.arange(form.size), form, form.dtype)
            buffers[letter], given[letter + "_offset"] = held.buffer, held.offset
    sentinel = np.full(plan.workspace_size + 256, 0xA5, np.uint8)
    workspace = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=sentinel)
    event = plan.enqueue(
        queue, buffers["a"], buffers["b"], c.buffer, workspace, None, c_offset=c.offset, workspace_offset=128,
        bias=bias and bias.buffer, bias_offset=bias.offset if bias else 0,
        residual=residual and residual.buffer, residual_offset=residual.offset if residual else 0, **given,
    )  # fmt: skip
    event.wait()

    got = c.now()[c.at].astype(np.float64)
    where = f"\n  rerun: {spec}\n  with {config}"
    if real:
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        limit = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 5e-3}[spec.dtype]
        assert error < limit, f"relative error {error:.2e}, at most {limit:.0e}{where}"
    else:
        expected = want.astype(dtype).astype(np.float64)
        wrong = np.argwhere(~(got == expected))
        first = tuple(wrong[0]) if len(wrong) else ()
        assert not len(wrong), f"{len(wrong)} wrong, first C{first} = {got[first]}, not {expected[first]}{where}"
    assert c.unchanged(except_at=c.at), "wrote outside C" + where
    assert all(x.unchanged() for x in (a, b, bias, residual) if x is not None), "changed an input" + where
    after = np.empty_like(sentinel)
    cl.enqueue_copy(queue, after, workspace)
    outside = np.r_[after[:128], after[128 + plan.workspace_size :]]
    assert (outside == 0xA5).all(), "wrote outside the workspace" + where


@pytest.fixture(autouse=True)
def _as_gpus_run_it(request):
    """The GPU's kernels item by item; the CPU's as they are."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if params.get("generator") == "gpu":
        request.getfixturevalue("item_by_item")


def choose(generator: str, spec: GemmSpec, device, number: int | None = None) -> dict:
    """A configuration of a generator; the GPU's for a small GPU. Without a number, shallow slices: quick to compile."""
    if generator == "cpu":
        found = list(cpu_configs(spec, runtime.device_info(device)))
        return found[(number or 0) % len(found)]
    found = list(gpu_configs(spec, SMALL_GPU))
    return found[0] | {"bk": 4} if number is None else found[number % len(found)]


both = pytest.mark.parametrize("generator", list(GENERATORS))

SHAPES = [  # m, n, k, batch: ones, primes, and the neighbours of register tiles, panels and slices
    (1, 1, 1, 1), (1, 1, 97, 1), (1, 33, 9, 5), (2, 3, 5, 7), (5, 1, 16, 2), (6, 64, 8, 1), (7, 65, 9, 1),
    (13, 47, 31, 2), (31, 17, 33, 1), (32, 32, 16, 1), (33, 63, 15, 1), (64, 128, 17, 1), (129, 127, 16, 1),
    (3, 300, 7, 1), (301, 2, 19, 1),
]  # fmt: skip


@both
@pytest.mark.parametrize(("m", "n", "k", "batch"), SHAPES)
def test_shapes(queue, device, generator, m, n, k, batch):
    spec = dense(m, n, k, batch)
    run(queue, spec, choose(generator, spec, device))


@both
@pytest.mark.parametrize("layout", ["ntn", "tnn", "ttn", "nnt", "ntt", "ttt"])
def test_orientations(queue, device, generator, layout):
    spec = dense(21, 37, 23, 2, layout)
    run(queue, spec, choose(generator, spec, device))


@pytest.mark.parametrize(("generator", "number"), [*(("cpu", i) for i in range(6)), *(("gpu", i) for i in range(12))])
def test_configurations(queue, device, generator, number):
    """Every tile on a shape that leaves edges on all sides, vectors allowed."""
    spec = dense(140, 268, 44, 1, "nnn", alignment=4)
    run(queue, spec, choose(generator, spec, device, number))


@both
@pytest.mark.parametrize("layout", ["nnn", "ntn", "tnn", "ttt"])
def test_vector_loads_of_whole_quads(queue, device, generator, layout):
    spec = dense(64, 96, 48, 2, layout, alignment=4)
    run(queue, spec, choose(generator, spec, device), offset=4)


@both
@pytest.mark.parametrize("offset", [1, 3])
def test_odd_offsets(queue, device, generator, offset):
    spec = dense(20, 40, 24, 2)
    run(queue, spec, choose(generator, spec, device), offset=offset)


SPLIT_AXES = {
    # y[image, m, pixel] = w[m, k] x[image, k, pixel]: columns are (image, pixel)
    "images as columns": (11, 3 * 47, 10, 1, Matrix(Axis(10), Axis(1)), Matrix(Axis(47), Axis(1, 47, 470)),
                          Matrix(Axis(47), Axis(1, 47, 11 * 47))),  # one vector ends one beyond its run
    "short runs": (5, 7 * 3, 4, 1, Matrix(Axis(4), Axis(1)), Matrix(Axis(3), Axis(1, 3, 12)),
                   Matrix(Axis(3), Axis(1, 3, 15))),
    # batch is (image, group): the weights depend on the group alone
    "image and group batches": (6, 20, 5, 6, Matrix(Axis(5), Axis(1), Axis(30, 2, 0)),
                                Matrix(Axis(20), Axis(1), Axis(100, 2, 200)),
                                Matrix(Axis(20), Axis(1), Axis(120, 2, 240))),
    "weights of the outer batch": (6, 20, 5, 6, Matrix(Axis(5), Axis(1), Axis(0, 2, 30)),
                                   Matrix(Axis(20), Axis(1), Axis(100)), Matrix(Axis(20), Axis(1), Axis(120))),
    "shared weights": (6, 20, 5, 3, Matrix(Axis(5), Axis(1)), Matrix(Axis(20), Axis(1), Axis(100)),
                       Matrix(Axis(20), Axis(1), Axis(120))),
    # dw[oc, c] = sum over (image, pixel) of dy[image, oc, pixel] x[image, c, pixel]
    "images in the sum": (6, 9, 4 * 25, 1, Matrix(Axis(25), Axis(1, 25, 150)), Matrix(Axis(1, 25, 225), Axis(25)),
                          Matrix(Axis(9), Axis(1))),
    "rows split": (12, 18, 7, 1, Matrix(Axis(7, 4, 100), Axis(1)), Matrix(Axis(18), Axis(1)),
                   Matrix(Axis(18, 4, 200), Axis(1))),
    "no unit stride": (9, 19, 8, 1, Matrix(Axis(3), Axis(40)), Matrix(Axis(50), Axis(2)), Matrix(Axis(60), Axis(3))),
}  # fmt: skip


@both
@pytest.mark.parametrize("case", SPLIT_AXES)
def test_split_axes(queue, device, generator, case):
    m, n, k, batch, a, b, c = SPLIT_AXES[case]
    spec = GemmSpec(m, n, k, batch, "float32", a, b, c)
    run(queue, spec, choose(generator, spec, device), offset=1)


@both
@pytest.mark.parametrize("case", SPLIT_AXES)
def test_packed_operands(queue, device, generator, case):
    m, n, k, batch, a, b, c = SPLIT_AXES[case]
    spec = GemmSpec(m, n, k, batch, "float32", a, b, c, a_packed=True, b_packed=True, alignment=4)
    run(queue, spec, choose(generator, spec, device))


@both
@pytest.mark.parametrize("swap", [False, True])
def test_packed_operands_of_the_swapped_product(queue, device, generator, swap):
    spec = dense(19, 35, 21, 2, b_packed=True, alignment=4)
    run(queue, spec, choose(generator, spec, device) | {"swap": swap})


EPILOGUES = [
    Epilogue(bias="m", activation="relu"),
    Epilogue(bias="n", residual=True),
    Epilogue(bias="n", bias_batch_stride=40, activation="clip(-4, 9)"),
    Epilogue(bias="m", bias_batch_stride=Axis(20, inner=2, outer=0), residual=True, activation="leaky_relu(0.5)"),
    Epilogue(accumulate=True),
    Epilogue(accumulate=True, bias="m", residual=True),
]


@both
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(("layout", "split"), [("nnn", 1), ("nnt", 3)])
def test_epilogues(queue, device, generator, epilogue, layout, split):
    spec = dense(19, 37, 40, 4, layout, epilogue=epilogue)
    run(queue, spec, choose(generator, spec, device) | {"split": split, "ks": 16 if split > 1 else 40})


@both
@pytest.mark.parametrize("activation", ["relu6", "elu", "sigmoid", "silu", "tanh", "hardswish", "gelu"])
def test_activations(queue, device, generator, activation):
    spec = dense(7, 37, 5, epilogue=Epilogue(bias="n", activation=activation))
    run(queue, spec, choose(generator, spec, device), real=True)


@both
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("layout", "split"), [("nnn", 1), ("ttt", 1), ("nnn", 2)])
def test_dtypes(queue, device, generator, dtype, layout, split):
    if why := runtime.device_info(device).supports(dtype):
        pytest.skip(why)
    epilogue = Epilogue(bias="n", residual=True, activation="relu")
    spec = dense(20, 36, 48, 2, layout, dtype, epilogue=epilogue, alignment=4)
    run(queue, spec, choose(generator, spec, device) | {"split": split, "ks": 32 if split > 1 else 48})


@both
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_real_data(queue, device, generator, dtype):
    if why := runtime.device_info(device).supports(dtype):
        pytest.skip(why)
    spec = dense(65, 130, 333, dtype=dtype)
    run(queue, spec, choose(generator, spec, device), real=True)


@both
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(3, 5, 40099, 1), (3, 5, 4099, 1), (1, 9, 2048, 6), (17, 33, 1500, 1)]
)
def test_split_sums(queue, device, generator, m, n, k, batch):
    """Long sums of few elements are split, the same way every time; a CPU's core does short ones sooner alone."""
    spec = dense(m, n, k, batch, "ntn")
    config = choose(generator, spec, device)
    assert config["split"] > 1 or k != 40099
    if generator == "cpu" and k == 4099:
        assert config["split"] == 1
    run(queue, spec, config)


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


def test_packing_kernels_follow_the_formula(queue, device):
    for generator in GENERATORS:
        for layout in ("nnn", "ttn"):
            spec = dense(23, 70, 37, 2, layout)
            config = choose(generator, spec, device)
            plan = GemmPlan(queue.context, spec, config)
            rng = np.random.default_rng(1)
            for letter, rows, cols in (("a", spec.m, spec.k), ("b", spec.k, spec.n)):
                at = places(getattr(spec, letter), spec.batch, rows, cols)
                x = Operand(queue, at, rng.integers(-9, 9, at.shape), np.float32)
                values = x.before[x.at] if letter == "a" else x.before[x.at].swapaxes(1, 2)
                want = np.nan_to_num(pack(spec, config, letter, values, "float32"), nan=0.0)
                assert want.nbytes == getattr(plan, f"packed_{letter}_size")
                packed = Operand(queue, np.arange(want.size), None, np.float32)
                getattr(plan, "pack_" + letter)(queue, x.buffer, packed.buffer, None, x.offset, packed.offset)
                np.testing.assert_array_equal(packed.now()[packed.at], want)
                assert packed.unchanged(except_at=packed.at)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("mr", [1, 2, 3, 5, 6, 8, 10])
def test_columns_of_a_packed_in_narrow_panels(queue, device, mr, dtype):
    """Vectors write beyond a panel's k, of more k's than one work item packs and rows that end within a panel."""
    if refusal := runtime.device_info(device).supports(dtype):
        pytest.skip(refusal)
    spec = dense(12 * mr + 1, 33, 600, 2, "tnn", dtype=dtype)
    config = {**choose("cpu", spec, device), "swap": False, "mr": mr, "nv": 1, "ku": 1, "pack_a": True}
    run(queue, spec, {**config, "split": 1, "ks": 600, "kc": 600, "pack_b": dtype == "float16"})


@pytest.mark.parametrize("run_length", [5, 15, 16, 20, 100])
def test_panels_across_images(queue, device, run_length):
    """Columns are images' places: of a panel's vectors some lie in one image, some in two and more."""
    images = 3
    b = Matrix(Axis(run_length), Axis(1, run_length, 7 * run_length))
    c = Matrix(Axis(run_length), Axis(1, run_length, 9 * run_length))
    spec = GemmSpec(9, images * run_length, 7, 1, "float32", Matrix(Axis(7), Axis(1)), b, c)
    config = {**choose("cpu", spec, device), "swap": False, "mr": 3, "nv": 3, "ku": 1}
    run(queue, spec, {**config, "pack_b": True, "split": 1, "kc": 7, "ks": 7})


def test_packed_index_macro(queue):
    """The OpenCL text of the index agrees with the Python formula."""
    m, n, k, batch, a, b, c = SPLIT_AXES["image and group batches"]
    spec = GemmSpec(m, n, k, batch, "float32", a, b, c)
    for letter, size in (("a", m), ("b", n)):
        layout = packed_layout(spec, {"kind": "cpu", "mr": 4, "nv": 1, "lanes": 8}, letter)
        text = layout.macro("WHERE") + "kernel void f(global long *o, int I, int K) { int r = get_global_id(0); "
        text += "o[r] = WHERE(r / (I * K), r / K % I, r % K); }"
        out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, batch * size * k * 8)
        kernel = cl.Program(queue.context, text).build().f
        kernel(queue, (batch * size * k,), None, out, np.int32(size), np.int32(k))
        got = np.empty(batch * size * k, np.int64)
        cl.enqueue_copy(queue, got, out)
        z, i, p = np.ogrid[:batch, :size, :k]
        np.testing.assert_array_equal(got.reshape(batch, size, k), layout.index(z, i, p))


def test_configurations_respect_the_device():
    for spec in (dense(1024, 1024, 1024), dense(1, 9, 100000, 8), dense(1, 3136, 9, 1152), dense(64, 64, 64, 36)):
        for item in gpu_configs(spec, SMALL_GPU):
            assert (item["bm"] // item["tm"]) * (item["bn"] // item["tn"]) <= 256
            assert item["stages"] * (item["bm"] + item["bn"] + 8) * item["bk"] * 4 <= 32768
    assert next(iter(configs(dense(8, 8, 8), SMALL_GPU)))["kind"] == "gpu"


def test_broken_promises_are_refused(queue, device):
    spec = dense(8, 8, 8, alignment=4)
    plan = GemmPlan(queue.context, spec, choose("cpu", spec, device))
    with pytest.raises(InvalidArgument, match="multiples of 4"):
        plan.enqueue(queue, None, None, None, None, b_offset=2)
    for change in ({"m": 0}, {"dtype": "int8"}):
        with pytest.raises(InvalidArgument):
            dataclasses.replace(spec, **change)
    with pytest.raises(InvalidArgument, match="activation"):
        Epilogue(accumulate=True, activation="relu")
