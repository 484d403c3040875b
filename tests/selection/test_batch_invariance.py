"""``policy(batch_invariant=True)``: an image's bits are the same in every batch, at every position, by every door."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import convdispatch
from bench.drawn import drawn
from convdispatch import ConvProblem, conv, conv_backward_data, inference, policy
from convdispatch.api.errors import InvalidPolicy, NoSolver
from convdispatch.api.policy import CHOICE_BATCH, CHOICE_BYTES, Policy
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.elementwise import apply, reduce
from convdispatch.elementwise.codegen.expression import FUNCTIONS
from convdispatch.elementwise.tensor import Tensor
from convdispatch.models import catalogue
from convdispatch.nn import Parameter, Tape, functional
from convdispatch.selection import decision_store, dispatch
from convdispatch.selection.choice import lockfile, ranking
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.computes

WHOLE = 9
"""Images of the batch whose results the others' are compared with."""
PARTS = ((1, 8), (2, 3), (5, 1))
"""Batches that are cut out of it: images, and the first of them."""
TEXT = "mb7ic16ih9oc32kh3ph1"


@pytest.fixture
def invariant(read_anew):
    with policy(batch_invariant=True) as chosen:
        yield chosen


def differing(compute, *batched: np.ndarray, count: int = WHOLE) -> int:
    """Images of which ``compute``, called with parts of a batch, gives other bits than with the whole of it."""
    whole = np.asarray(compute(*batched))
    wrong = 0
    for images, start in PARTS:
        part = np.asarray(compute(*(np.ascontiguousarray(each[start : start + images]) for each in batched)))
        wrong += sum(part[i].tobytes() != whole[start + i].tobytes() for i in range(images))
    return wrong


def call_of(problem: ConvProblem, operands):
    """A function of the batch that computes a problem's call for as many images as it is given."""
    options = {"layout": problem.layout, "groups": problem.g, "math": problem.math}
    for name, letter in (("stride", "s"), ("dilation", "d")):
        options[name] = tuple(getattr(problem, letter + axis) for axis in problem.axes)
    options["padding"] = [(getattr(problem, "p" + a), getattr(problem, f"p{a}_r")) for a in problem.axes]
    if problem.direction == "fwd":
        return lambda x: conv(x, operands["w"], activation="silu", **options)
    shape = problem.x_shape[1:]
    return lambda y: conv_backward_data(y, operands["w"], (y.shape[0], *shape), **options)


def test_layers_that_nobody_chose(invariant, full):
    """Drawn by a seed over families of layers, both directions: no bit differs."""
    from convdispatch.measurement.search.trialdata import random_operands

    count, seen = 40 if full else 3, 0
    for problem in drawn("cpu", "float32", 54):
        if problem.direction == "bwd_weights" or problem.flops / problem.mb > 1e7:
            continue
        plain = problem.replace(mb=WHOLE, bias=False, residual=False, activation=None, constant_weights=False)
        operands = random_operands(plain, 1)
        batched = operands["x" if plain.direction == "fwd" else "y"]
        assert differing(call_of(plain, operands), batched) == 0, plain
        seen += 1
        if seen == count:
            break


def test_without_the_policy_the_batch_chooses():
    """What the policy is for: the free choice for one image and for many are different solvers here."""
    info = runtime.device_info(runtime.find_device("cpu"))
    one, many = (ConvProblem.parse(f"mb{n}ic1600ih1oc32kh1") for n in (1, 300))
    assert ranking.rank(one, info)[0].solver.name != ranking.rank(many, info)[0].solver.name
    with policy(batch_invariant=True):
        chosen = [ranking.rank(p, info)[0] for p in (one, many)]
    assert [(c.solver.name, c.config) for c in chosen] == [(chosen[0].solver.name, chosen[0].config)] * 2


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_problem_of_choice(direction, invariant):
    """Follows from the image alone; a gradient of weights is a sum over the batch, and stays."""
    texts = [f"{direction}_f32_mb{n}ic16ih14oc16kh3ph1" for n in (1, 3, CHOICE_BATCH, 1000)]
    chosen = {invariant.problem_of_choice(ConvProblem.parse(text)) for text in texts}
    assert len(chosen) == (4 if direction == "bwd_weights" else 1)
    assert Policy().problem_of_choice(ConvProblem.parse(texts[0])).mb == 1
    large = ConvProblem.parse("mb1ic64id128ih128iw128oc64kd3kh3kw3pd1ph1pw1")
    few = invariant.problem_of_choice(large)
    assert few.mb == 1 or few.bytes <= 2 * CHOICE_BYTES
    assert invariant.problem_of_choice(ConvProblem.parse("mb3ic64ih1oc10kh1")).mb > CHOICE_BATCH
    assert invariant.problem_of_choice(ConvProblem.parse("mb0ic64ih1oc10kh1")).mb == 0


def test_who_says_nothing_is_no_candidate(invariant, monkeypatch):
    """The vendors' libraries, whose blocks follow from the batch, and third parties without the declaration."""
    info, problem = runtime.device_info(runtime.find_device("cpu")), ConvProblem.parse(TEXT)
    monkeypatch.setattr(plugins().solvers["im2col"], "batch_invariant", False)
    refused = ranking.refusal(plugins().solvers["im2col"], problem, info, invariant)
    assert refused == ("refused", "policy(batch_invariant=True), and this solver does not say that it is")
    assert not plugins().solvers["onednn.forward"].batch_invariant
    monkeypatch.undo()
    few = lambda p, _: "100 images at most" if p.mb > 100 else None  # noqa: E731
    monkeypatch.setattr(plugins().solvers["im2col"], "rejects", few, raising=False)
    dispatch.forget()
    refused = ranking.refusal(plugins().solvers["im2col"], problem, info, invariant)
    assert refused == ("refused", "policy(batch_invariant=True), and not every batch: 100 images at most")


def test_configurations_that_sum_by_the_batch_are_left_out(invariant, monkeypatch):
    info, problem = runtime.device_info(runtime.find_device("cpu")), ConvProblem.parse(TEXT)
    solver = plugins().solvers["im2col"]
    dispatch.forget()
    with policy(solver="im2col"):
        first = ranking.rank(problem, info)[0].config
        monkeypatch.setattr(type(solver), "sums_by_batch", lambda self, p, d, config: config == first)
        dispatch.forget()
        assert ranking.rank(problem, info)[0].config != first
        monkeypatch.setattr(type(solver), "sums_by_batch", lambda self, p, d, config: True)
        dispatch.forget()
        with pytest.raises(NoSolver, match="each configuration sums by the batch"):
            ranking.rank(problem, info)


def test_explain_says_the_price(invariant):
    why = convdispatch.explain("mb1ic512ih7oc512kh3ph1", "cpu").why
    assert f"chosen as for a batch of {CHOICE_BATCH} images, for every batch" in why
    assert "times as long" in why or "the same would run here" in why
    assert "batch of" not in convdispatch.explain("bwd_weights_f32_mb1ic16ih7oc16kh3ph1", "cpu").why


def test_what_one_batch_measured_decides_for_no_other(tmp_path, monkeypatch, read_anew, invariant):
    """A user's record, which would put the slowest solver first, and a neighbour's, do not."""
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path))
    read_anew()
    info, problem = runtime.device_info(runtime.find_device("cpu")), ConvProblem.parse(TEXT)
    before = ranking.rank(problem, info)
    with policy(batch_invariant=False):
        for images in (7, CHOICE_BATCH):
            convdispatch.find(problem.replace(mb=images), "cpu", budget_ms=60)
    after = ranking.rank(problem, info)
    assert [(c.solver.name, c.config, c.source) for c in after] == [(c.solver.name, c.config, c.source) for c in before]
    locked = {str(problem.replace(mb=CHOICE_BATCH)): lockfile.Decision("im2col", {})}
    monkeypatch.setattr(lockfile, "_agreed", locked)
    with pytest.raises(InvalidPolicy, match="no configuration that it offers"):
        ranking.rank(problem, info)


def test_a_stored_decision_is_every_batch_s(invariant):
    info, problem = runtime.device_info(runtime.find_device("cpu")), ConvProblem.parse(TEXT)
    first = decision_store.choices(problem, info, invariant).first
    others = [decision_store.choices(problem.replace(mb=n), info, invariant).first for n in (1, 32, 65)]
    assert {(c.solver.name, str(c.config)) for c in others} == {(first.solver.name, str(first.config))}


def test_a_batch_that_the_choice_refuses_is_an_error(invariant, monkeypatch):
    """Another solver would give other bits: it says so, and what to do."""
    problem = ConvProblem.parse(TEXT)
    context = runtime.queue(runtime.find_device("cpu")).context
    first = ranking.rank(problem, runtime.device_info(context.devices[0]))[0].solver
    solver = getattr(first, "solver", first)
    own = type(solver).rejects
    monkeypatch.setattr(
        type(solver), "rejects", lambda self, p, d: "7 images are too many" if p.mb == 7 else own(self, p, d)
    )
    dispatch.forget()
    with pytest.raises(NoSolver, match="not for this one: 7 images are too many; split the batch"):
        dispatch.prepare(problem, context)


def test_a_solver_that_fails_is_set_aside_for_every_batch(invariant, monkeypatch):
    problem = ConvProblem.parse(TEXT)
    context = runtime.queue(runtime.find_device("cpu")).context
    info = runtime.device_info(context.devices[0])
    dispatch.forget()
    ran = {n: dispatch.prepare(problem.replace(mb=n), context).solver.name for n in (1, 2)}
    assert ran[1] == ran[2]
    with pytest.warns(convdispatch.api.errors.ConvDispatchWarning, match="set aside"):
        dispatch.quarantine(problem.replace(mb=2), info, ran[1], "it failed in a test")
    again = {n: dispatch.prepare(problem.replace(mb=n), context).solver.name for n in (1, 2, 3)}
    assert len(set(again.values())) == 1
    assert ran[1] not in again.values()


def test_the_environment_and_its_opposite(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_BATCH_INVARIANT", "1")
    assert Policy().is_invariant
    assert Policy().selection == Policy(batch_invariant=True).selection
    assert not Policy(batch_invariant=False).is_invariant
    assert not Policy(batch_invariant=False).selection.is_invariant
    monkeypatch.delenv("CONVDISPATCH_BATCH_INVARIANT")
    assert Policy(batch_invariant=False).selection == Policy()
    with pytest.raises(InvalidPolicy, match="batch_invariant"), policy(batch_invariant=1):
        pass


def test_weights_gradients_repeat(invariant):
    rng = np.random.default_rng(2)
    x, dy = (rng.standard_normal((6, 16, 9, 9)).astype(np.float32) for _ in range(2))
    first, again = (convdispatch.conv_backward_weights(x, dy, (16, 16, 3, 3), padding=1) for _ in range(2))
    assert first.tobytes() == again.tobytes()


# --- what is no convolution -------------------------------------------------------------------------------------------


@pytest.fixture
def images():
    return np.random.default_rng(5).standard_normal((WHOLE, 6, 7, 5)).astype(np.float32)


def on(cpu_queue, function):
    """``function`` of a Tensor, as a function of an array."""
    return lambda *arrays: function(*(Tensor.from_numpy(each, cpu_queue) for each in arrays)).numpy()


@pytest.fixture
def cpu_queue():
    return runtime.queue(runtime.find_device("cpu"))


@pytest.mark.parametrize("name", [name for name, each in FUNCTIONS.items() if each.arity == 1])
def test_functions_of_elements(invariant, cpu_queue, images, name):
    """A vector's elements and those that are left over have the same bits: where an image lies does not matter."""
    given = np.abs(images) * np.float32(0.4) + np.float32(1.0 if name == "acosh" else 0.1)
    given = np.minimum(given, np.float32(0.9)) if name in ("asin", "acos", "atanh") else given
    assert differing(on(cpu_queue, lambda x: apply(f"{name}(x)", x=x)), given) == 0


LAYERS = {
    "sum_of_rows": lambda x: reduce("sum", "x * x", (2, 3), x=x),
    "sum_of_columns": lambda x: reduce("sum", "x", (1,), x=x),
    "one_value": lambda x: reduce("mean", "x", (1, 2, 3), x=x),
    "softmax": lambda x: functional.softmax(x, -1),
    "softmax_of_channels": lambda x: functional.softmax(x, 1),
    "log_softmax": lambda x: functional.log_softmax(x, 1),
    "layer_norm": lambda x: functional.layer_norm(x, 1),
    "group_norm": lambda x: functional.group_norm(x, 3),
    "max_pool": lambda x: functional.max_pool(x, 3, stride=2, padding=1),
    "avg_pool": lambda x: functional.avg_pool(x, 3, stride=2, padding=1),
    "global_pool": lambda x: functional.global_average_pool(x),
    "lrn": lambda x: functional.local_response_norm(x, 5),
    "linear": lambda x: functional.linear(x.reshape(x.shape[0], 210), ramp(x, 33, 210)),
    "matmul": lambda x: functional.matmul(x.reshape(x.shape[0], 42, 5), ramp(x, 5, 11)),
    "matmul_of_pairs": lambda x: functional.matmul(x, x.transpose(0, 1, 3, 2)),
    "matmul_of_vectors": lambda x: functional.matmul(x.reshape(x.shape[0], 210), ramp(x, 210, 3)),
    "attention": lambda x: functional.attention(x, x, x),
    "causal_attention": lambda x: functional.attention(x, x, x, causal=True),
    "adaptive_avg_pool": lambda x: functional.adaptive_avg_pool(x, 3),
    "lp_pool": lambda x: functional.lp_pool(x, 3, stride=2),
    "batch_norm": lambda x: functional.batch_norm(x, *(ramp(x, 6) * ramp(x, 6) for _ in range(4)), training=False),
    "transposed_convolution": lambda x: functional.transposed_convolution(x, ramp(x, 6, 9, 3, 3), stride=2),
}


def ramp(x: Tensor, *shape: int) -> Tensor:
    """Numbers that are the same at each call."""
    numbers = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    return Tensor.from_numpy(numbers, x.queue)


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_nn(invariant, cpu_queue, images, layer):
    assert differing(on(cpu_queue, LAYERS[layer]), images) == 0


PRODUCTS = {
    "matmul": lambda x: functional.matmul(x, ramp(x, 20_000, 64)),
    "linear": lambda x: functional.linear(x.reshape(x.shape[0], 20_000), ramp(x, 64, 20_000)),
    "pairs": lambda x: functional.matmul(x.reshape(x.shape[0], 4, 50, 100), ramp(x, 4, 100, 30)),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_products_of_few_long_rows(cpu_queue, product):
    """Their sums would be cut to fill a device: where the batch decides, matmul's rows have other bits in another."""
    rows = np.random.default_rng(4).standard_normal((40, 20_000)).astype(np.float32)
    compute = on(cpu_queue, PRODUCTS[product])
    if product == "matmul":
        assert differing(compute, rows)
    with policy(batch_invariant=True):
        assert differing(compute, rows) == 0


def test_gradients_of_layers_of_nn(invariant, cpu_queue, images):
    """What lies between convolutions in a backward pass: an image's gradient has the same bits in every batch."""

    def gradient(x: Tensor) -> Tensor:
        x = Parameter(x)
        with Tape() as tape:
            y = functional.layer_norm(functional.max_pool(x, 3, stride=1, padding=1), 1)
            y = functional.group_norm(functional.avg_pool(y, 3), 3)
            y = functional.softmax(functional.linear(functional.flatten(y), ramp(x, 33, 12)), 1)
        tape.backward(y, apply("y * y", y=y))
        return x.grad

    assert differing(on(cpu_queue, gradient), images) == 0


def test_few_long_rows(invariant, cpu_queue):
    """Sums that would be split among work groups while there are few of them, and rows of a norm that would be too few
    for a work group each."""
    rows = np.random.default_rng(3).standard_normal((WHOLE, 40_001)).astype(np.float32)
    assert differing(on(cpu_queue, lambda x: reduce("sum", "x", (1,), x=x)), rows) == 0
    assert differing(on(cpu_queue, lambda x: functional.layer_norm(x, 1)), rows) == 0


# --- nets -------------------------------------------------------------------------------------------------------------


def test_a_net(invariant):
    net = catalogue.create("lenet")
    x = np.random.default_rng(1).standard_normal((WHOLE, net.CHANNELS, net.SIZE, net.SIZE)).astype(np.float32)
    assert differing(lambda part: inference.build(net, part.shape, recall=True)(part), x) == 0


def test_nets_are_not_timed(invariant, monkeypatch):
    """The layout is the prediction's for the batch of choice, whatever the batch is; no form is timed."""
    from convdispatch.inference import building

    monkeypatch.setattr(building, "benchmark_forms", lambda *_: pytest.fail("forms were timed"))
    net = catalogue.create("lenet")
    layouts = {inference.build(net, (n, net.CHANNELS, net.SIZE, net.SIZE)).layout for n in (1, 4)}
    assert len(layouts) == 1


def test_policies_of_children_and_threads():
    """What works for a call elsewhere is handed both promises, with what the environment says."""
    chosen = Policy(deterministic=True, batch_invariant=True)
    with policy(**chosen.promises) as there:
        assert there.deterministic
        assert there.is_invariant
        assert there.repeats
    assert dataclasses.replace(chosen, batch_invariant=None).repeats
    assert list(itertools.chain(Policy().promises)) == ["deterministic", "batch_invariant", "strict_nan"]
