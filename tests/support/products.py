"""Matrix products run between guard zones and compared with float64: what tests of the generated ones share."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pyopencl as cl

from convdispatch.api.activations import apply_activation
from convdispatch.api.device import DeviceInfo
from convdispatch.device import runtime
from convdispatch.device.gemm import Axis, GemmPlan, GemmSpec, Matrix, packed_layout
from convdispatch.device.gemm.configs import cpu_configs, gpu_configs

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


def choose(generator: str, spec: GemmSpec, device, number: int | None = None) -> dict:
    """A configuration of a generator; the GPU's for a small GPU. Without a number, shallow slices: quick to compile."""
    if generator == "cpu":
        found = list(cpu_configs(spec, runtime.device_info(device)))
        return found[(number or 0) % len(found)]
    found = list(gpu_configs(spec, SMALL_GPU))
    return found[0] | {"bk": 4} if number is None else found[number % len(found)]


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
