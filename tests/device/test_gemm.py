"""The generated matrix product: exact on small integers, in every layout, epilogue and dtype, between guard zones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from products import (
    GENERATORS,
    SMALL_GPU,
    SPLIT_AXES,
    Operand,
    choose,
    dense,
    pack,
    places,
    run,
)

from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.device.gemm import Axis, Epilogue, GemmPlan, GemmSpec, Matrix, configs
from convdispatch.device.gemm.configs import gpu_configs


@pytest.fixture(autouse=True)
def _as_gpus_run_it(request):
    """The GPU's kernels item by item; the CPU's as they are."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if params.get("generator") == "gpu":
        request.getfixturevalue("item_by_item")


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
                plan.pack(letter, queue, x.buffer, packed.buffer, None, (x.offset, packed.offset))
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
