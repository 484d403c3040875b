"""The four calls over the shape tables: integer data exactly, real data within the contract, between guard zones.

The selection rotates direction, layout, data and kind of array along the tables, so that every combination
runs on some shapes; ``--full`` runs the whole products.
"""

from __future__ import annotations

import importlib
import itertools
import threading

import numpy as np
import pyopencl as cl
import pytest
import shape_tables
from checking import Operands, call, check, compare, first_choice, limit_of, make_operands, numpy_dtype

import convdispatch
from bench.place import options_of
from convdispatch import ConvProblem, InvalidProblem
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection.plugins.loader import plugins

BASIC, NEAR = shape_tables.load("basic"), shape_tables.load("near_miss")
DTYPES = ("float32", "float64", "float16", "bfloat16")
VARIANTS = list(itertools.product(("nchw", "nhwc"), ("integer", "real"), ("device", "host")))


def selected() -> dict[str, tuple[ConvProblem, str, str]]:
    """Test id to (problem, data, arrays): every second of the basic shapes and of the near misses, each one way.

    ``test_whole_products`` runs all, all ways. Each shape's direction, layout, data and kind of array differ from its
    neighbours'. Compilation is what takes the time: each has two programs of its own.
    """
    chosen = [(entry, DIRECTIONS[(number + number // 3) % 3]) for number, entry in enumerate([*BASIC[::2], *NEAR[::2]])]
    result = {}
    for number, (entry, direction) in enumerate(chosen):
        layout, data, arrays = VARIANTS[3 * number // 2 % len(VARIANTS)]
        name = f"{entry.name}-{direction}-{layout}-{data}-{arrays}"
        result[name] = entry.problem.replace(direction=direction, layout=layout), data, arrays
    return result


SELECTED = selected()


@pytest.mark.parametrize("name", SELECTED)
def test_shape(device, solver, name):
    problem, data, arrays = SELECTED[name]
    check(problem, device, solver=solver, data=data, arrays=arrays, seed=len(name))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("number", range(0, len(BASIC) + len(NEAR), 6))
def test_whole_products(device, full, solver, number, direction):
    """Every shape in every direction, layout, kind of data and of array."""
    if not full:
        pytest.skip("takes long: run with --full")
    for entry in [*BASIC, *NEAR][number : number + 6]:
        for layout, data, arrays in VARIANTS:
            problem = entry.problem.replace(direction=direction, layout=layout)
            check(problem, device, solver=solver, data=data, arrays=arrays, seed=number)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dtypes(device, full, solver, direction, dtype):
    """Every dtype on a spread of shapes; each dtype starts elsewhere in the tables."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes, which has bfloat16, is not installed")
    step = 1 if full else 59  # both layouts for each
    for number in range(DTYPES.index(dtype), len(NEAR), step):
        layout, data, arrays = VARIANTS[number % len(VARIANTS)]
        problem = NEAR[number].problem.replace(direction=direction, layout=layout, dtype=dtype)
        check(problem, device, solver=solver, data=data, arrays=arrays, seed=number)


MATHS = ["ieee", "tf32", "fast"]


@pytest.mark.parametrize("math", MATHS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_math(device, full, solver, direction, math):
    # Solvers without a reduced format compute float32 under every name: a looser limit would let a wrong format pass.
    reduced = (solver or "").startswith(("nvidia", "cudnn"))
    limit = {"ieee": 1e-6, "tf32": 1e-3 if reduced else 1e-5, "fast": 1e-2 if reduced else 1e-5}[math]
    texts = ("mb2ic16ih9oc24kh3ph1", "mb2ic16ih9oc24kh1")
    for text in texts if full else [texts[(MATHS.index(math) + DIRECTIONS.index(direction)) % 2]]:
        problem = ConvProblem.parse(text).replace(direction=direction, math=math)
        check(problem, device, solver=solver, data="real", tolerance=limit)


EPILOGUES = ["bias", "residual", "relu", "bias+residual+relu", "bias+clip(-3,5)", "bias+leaky_relu(0.2)",
             "residual+relu6", "bias+silu", "sigmoid", "tanh", "elu(0.5)", "bias+hardswish", "gelu", "bias+gelu_tanh",
             "hardsigmoid(0.3,0.4)", "mish"]  # fmt: skip


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_epilogues(device, full, solver, direction, epilogue, layout):
    """Forward through conv, backward through conv_transpose, which is the same sum seen as a layer."""
    if not full and layout != LAYOUTS[(EPILOGUES.index(epilogue) + DIRECTIONS.index(direction)) % 2]:
        pytest.skip("with --full only")
    places = ["mb2ic5ih7iw6oc9kh3ph1sh2"]
    if epilogue == "bias+residual+relu":
        places += ["mb1ic3id4ih5iw4oc4kd2kh3kw3", "g4mb2ic8iw9oc8kw3", "f16_ic4ih5oc6kh3"]
    for number, place in enumerate(places):
        problem = ConvProblem.parse(f"{direction}_{layout}_{place}+{epilogue}")
        for data in ("integer", "real"):
            check(problem, device, solver=solver, data=data, arrays=("device", "host")[number % 2])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_accumulate_adds_to_the_output(device, full, solver, direction, layout):
    texts = ("mb2ic5ih7oc9kh3ph1", "g3mb2ic6iw9oc9kw3sw2", "mb3ic32ih6oc24kh1")
    if not full:  # every direction in every layout and of every text
        texts = texts[(LAYOUTS.index(layout) + DIRECTIONS.index(direction)) % 2 :: 2]
    for number, (text, arrays) in enumerate(itertools.product(texts, ("device", "host"))):
        if not full and number in (1, 2):  # the first on the device, the other on the host
            continue
        problem = ConvProblem.parse(text).replace(direction=direction, layout=layout, accumulate=True)
        check(problem, device, solver=solver, arrays=arrays)
    if direction == "fwd":
        check(ConvProblem.parse(f"fwd_{layout}_mb2ic4ih6oc6kh3+bias+residual+accumulate"), device, solver=solver)


@pytest.mark.parametrize("name", ["convnet", "alexnet", "vgg_a", "googlenet", "resnet50", "mobilenet"])
def test_layers_of_nets_by_samples(device, full, solver, name):
    """Real layers with their channels, batch 1, verified at sampled elements; every 18th layer unless --full."""
    layers = {entry.problem.replace(mb=1): entry for entry in shape_tables.load(name)}
    for problem in list(layers)[:: 1 if full else 18]:
        random = np.random.default_rng(1)
        x = random.standard_normal(problem.x_shape, np.float32)
        w = random.standard_normal(problem.w_shape, np.float32)
        with convdispatch.policy(solver=solver):
            y = call(problem, {"x": x, "w": w})
        at = reference.positions(problem, 256)
        compare(y.ravel()[at], reference.sample(problem, at, x=x, w=w), 1e-5, f"{name} {layers[problem].name}")


# --- arguments --------------------------------------------------------------------------------------------------------


def arrays_of(text: str, **changes) -> tuple[ConvProblem, Operands, np.ndarray]:
    problem = ConvProblem.parse(text).replace(**changes)
    return problem, *make_operands(problem)


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (2, 1), (4, 3), ((3, 4), (2, 1)), (1, 1)])
def test_same_pads_as_pytorch_does(kernel, dilation):
    """Total d (k - 1); the smaller half comes first; the size stays."""
    kernels = np.broadcast_to(kernel, 2)
    totals = np.broadcast_to(dilation, 2) * (kernels - 1)
    pads = tuple((int(total) // 2, int(total - total // 2)) for total in totals)
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, (2, 3, 9, 8)).astype(np.float32)
    w = random.integers(-4, 5, (5, 3, *kernels)).astype(np.float32)
    same = convdispatch.conv(x, w, padding="same", dilation=dilation)
    assert same.shape == (2, 5, 9, 8)
    np.testing.assert_array_equal(same, convdispatch.conv(x, w, padding=pads, dilation=dilation))


def test_valid_is_no_padding_and_axes_take_one_number_a_pair_or_a_number_each():
    problem, operands, expected = arrays_of("mb2ic3ih8iw7oc4kh3kw2ph2pw1ph_r2pw_r1")
    x, w = operands.x, operands.w
    for padding in [(2, 1), [2, 1], [(2, 2), (1, 1)], (2, (1, 1))]:
        np.testing.assert_array_equal(convdispatch.conv(x, w, padding=padding), expected)
    np.testing.assert_array_equal(convdispatch.conv(x, w, padding="valid"), convdispatch.conv(x, w))
    np.testing.assert_array_equal(
        convdispatch.conv(x, w, stride=[2, 1], dilation=(1, np.int64(2))),
        reference.compute(problem.replace(ph=0, pw=0, ph_r=0, pw_r=0, sh=2, dw=2), x=x, w=w),
    )


def test_the_result_has_the_dtype_and_is_fresh_or_is_out():
    _, operands, expected = arrays_of("mb2ic3ih8oc4kh3", dtype="float16")
    first = convdispatch.conv(operands.x, operands.w)
    second = convdispatch.conv(operands.x, operands.w)
    assert first.dtype == np.float16
    assert first is not second
    out = np.empty_like(first)
    assert convdispatch.conv(operands.x, operands.w, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_empty_batch_is_no_work(direction):
    problem = ConvProblem.parse("mb0ic3ih8oc4kh3ph1").replace(direction=direction)
    arrays = {name: np.ones(getattr(problem, name + "_shape"), np.float32) for name in "xwy" if name != problem.written}
    result = call(problem, arrays)
    assert result.shape == problem.out_shape
    assert not result.any()  # a sum over no images is zero
    if direction == "bwd_weights":
        out = np.full(problem.w_shape, 3.0, np.float32)
        assert not call(problem, arrays, out=out).any()
        kept = call(problem.replace(accumulate=True), arrays, out=np.full(problem.w_shape, 3.0, np.float32))
        assert (kept == 3).all()


def test_a_kernel_larger_than_the_padded_input_is_refused():
    with pytest.raises(InvalidProblem, match="along h it spans 5"):
        convdispatch.conv(np.ones((1, 1, 2, 9), np.float32), np.ones((1, 1, 5, 5), np.float32), padding=(1, 0))


@pytest.mark.parametrize("solver", ["im2col", "implicitgemm.*", "*"])
def test_constant_weights_give_the_same(device, solver):
    for text in ("mb2ic16ih9oc24kh3ph1", "mb2ic16ih9oc24kh1", "g8mb1ic8ih7oc8kh3ph1"):
        problem, operands, expected = arrays_of(text)
        kept = convdispatch.constant(operands.w)
        with convdispatch.policy(solver=solver):
            chosen = convdispatch.explain(problem.replace(constant_weights=True), device).chosen
            limit = limit_of(problem, chosen)
            for _ in range(3):  # packs on the first call, reads the packed form after
                compare(call(problem, {"x": operands.x, "w": kept}), expected, limit, chosen)
            half = problem.replace(mb=1)  # another batch shares the weights
            half_chosen = convdispatch.explain(half.replace(constant_weights=True), device).chosen
            got = call(half, {"x": operands.x[:1], "w": kept})
            compare(got, expected[:1], limit_of(half, half_chosen), half_chosen)


@pytest.mark.parametrize("name", sorted(plugins().solvers))
def test_every_solver_on_a_few_shapes(device, full, name):
    """Each solver that is loaded, pinned; the shapes that it refuses are not its matter."""
    ran, seen = 0, set()
    for number, entry in enumerate([*BASIC, *NEAR]):
        way = {"direction": DIRECTIONS[number % 3], "layout": LAYOUTS[number // 13 % 2]}
        if number % (1 if full else 13) == 0 and (full or (*way.values(),) not in seen):
            problem = entry.problem.replace(**way)
            if plugins().solvers[name].rejects(problem, runtime.device_info(device)):
                continue  # a choice among none would ask every solver for its reason
            with convdispatch.policy(solver=name):
                accepted = first_choice(problem, device)
            if accepted:
                check(problem, device, solver=name, data=("integer", "real")[number % 2])
                ran += 1
                seen.add((*way.values(),))
    if ran == 0:
        pytest.skip(f"{name} refuses every selected shape on this device")


def test_the_naive_plugin_agrees(device, naive):
    """A drop-in written from the definition: the same results through the same call."""
    for number, entry in enumerate(NEAR[::9]):
        problem = entry.problem.replace(direction=DIRECTIONS[number % 3], layout=("nchw", "nhwc")[number % 2])
        check(problem, device, solver="naive.direct")


def test_bfloat16_is_ml_dtypes():
    pytest.importorskip("ml_dtypes")
    x = np.ones((1, 1, 4), numpy_dtype("bfloat16"))
    assert convdispatch.conv(x, x).dtype == x.dtype
    assert options_of(ConvProblem.parse("iw4kw4"))["padding"] == ((0, 0),)


def test_plugins_load_while_the_device_is_found(monkeypatch):
    """Most of a machine's first call is the driver's first compilation; a device found afterwards would wait here."""
    from convdispatch.calls import described_call

    loading, found = threading.Event(), threading.Event()

    def find():
        assert loading.wait(30), "plugins are loaded only after the device was found"
        found.set()
        raise convdispatch.NoDevice("the caller gets this error later")

    def load():
        loading.set()
        assert found.wait(30), "the device is found only after plugins were loaded"

    monkeypatch.setattr(runtime, "default_device", find)
    monkeypatch.setattr(described_call, "plugins", load)
    described_call._find_default_device(ConvProblem())


@pytest.mark.parametrize(("empty", "expects"), [(True, True), (True, False), (False, True)])
def test_a_machines_first_problem_is_planned_while_its_device_is_probed(queue, monkeypatch, empty, expects):
    from convdispatch.calls import described_call

    planned, asked = threading.Event(), []
    plans = empty and expects

    def probe():
        assert not plans or planned.wait(30), "nothing is planned until the device was probed"
        raise convdispatch.NoDevice("the caller gets this error later")

    def prepare(problem, context):
        asked.append((problem, context))
        planned.set()
        raise cl.LogicError("the call itself gets this error")

    problem = ConvProblem(ic=3, oc=5)
    monkeypatch.setattr(runtime, "expected_device", lambda: queue.device if expects else None)
    monkeypatch.setattr(runtime, "default_device", probe)
    monkeypatch.setattr(described_call.dispatch, "prepare", prepare)
    monkeypatch.setattr(described_call.TEXTS, "is_empty", lambda: empty)
    described_call._find_default_device(problem)
    assert asked == [(problem, runtime.context(queue.device))] * plans
    described_call._find_default_device(problem.replace(mb=0))
    assert len(asked) == plans, "a batch of no images has no plan"


def test_a_warm_call_with_lists_is_found_again(monkeypatch):
    module, seen = importlib.import_module("convdispatch.calls.conv"), []
    describe = module.described_call
    monkeypatch.setattr(module, "described_call", lambda *given: seen.append(1) or describe(*given))
    x, w = np.ones((1, 3, 7, 9), np.float32), np.ones((5, 3, 3, 2), np.float32)
    results = [convdispatch.conv(x, w, stride=[1, 2], padding=[[1, 0], [1, 1]], dilation=[1, 1]) for _ in range(3)]
    assert len(seen) == 1
    assert (results[0] == convdispatch.conv(x, w, stride=(1, 2), padding=((1, 0), (1, 1)))).all()
