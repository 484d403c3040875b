"""The oracle itself: against sums written out by hand, its own adjoints, its samples, and PyTorch where installed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import shape_tables
from checking import make_operands

from bench.place import options_of
from convdispatch import ConvProblem, InvalidArgument
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import reference

ENTRIES = [entry for table in ("basic", "near_miss") for entry in shape_tables.load(table)]
IDS = [entry.name for entry in ENTRIES]


def by_hand(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The definition, an element at a time: channels first, two axes of space."""
    p = problem
    y = np.zeros(p.y_shape)
    for n, o, i, j in itertools.product(*map(range, p.y_shape)):
        group = o // (p.oc // p.g)
        for c, a, b in itertools.product(range(p.ic // p.g), range(p.kh), range(p.kw)):
            row, column = i * p.sh - p.ph + a * p.dh, j * p.sw - p.pw + b * p.dw
            if 0 <= row < p.ih and 0 <= column < p.iw:
                y[n, o, i, j] += x[n, group * (p.ic // p.g) + c, row, column] * w[o, c, a, b]
    return y


@pytest.mark.parametrize(
    "text", ["mb2ic2ih5iw4oc3kh3kw2ph1pw0", "g2ic4ih6oc6kh2sh2ph1", "ic1ih7oc2kh3dh2ph0pw1ph_r2pw_r0"]
)
def test_the_definition(text):
    problem = ConvProblem.parse(text)
    operands, got = make_operands(problem)
    assert (got == by_hand(problem, operands.x.astype(float), operands.w.astype(float))).all()


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_gradients_are_adjoints_in_both_layouts(entry):
    """<y, conv(x, w)> = <x, backward_data(y, w)> = <w, backward_weights(x, y)>; integers, so equal to the last bit."""
    inner = []
    for layout in ("nchw", "nhwc"):
        problem = entry.problem.replace(layout=layout)
        random = np.random.default_rng(3)
        arrays = {name: random.integers(-4, 5, getattr(problem, name + "_shape")).astype(float) for name in "xwy"}
        results = {}
        for direction in DIRECTIONS:
            asked = problem.replace(direction=direction)
            results[asked.written] = reference.compute(asked, **arrays)
        inner.append({float(np.vdot(arrays[name], result)) for name, result in results.items()})
        assert len(inner[-1]) == 1, inner


def test_layouts_are_the_same_numbers():
    problem = ConvProblem.parse("g2mb2ic4ih6iw5oc6kh3kw2sh2sw1ph1pw2ph_r0pw_r1")
    operands, expected = make_operands(problem, "real")

    def last(array):
        return np.moveaxis(array, 1, -1)

    got = reference.compute(problem.replace(layout="nhwc"), x=last(operands.x), w=last(operands.w))
    np.testing.assert_allclose(got, last(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("entry", ENTRIES[::3], ids=IDS[::3])
def test_samples_are_the_whole_s_elements(entry, direction):
    for layout, dtype in (("nchw", "float32"), ("nhwc", "float16")):
        extras = {} if direction == "bwd_weights" else {"bias": True, "residual": True}
        problem = entry.problem.replace(direction=direction, layout=layout, dtype=dtype, accumulate=True, **extras)
        operands, expected = make_operands(problem, "real")
        at = reference.positions(problem, 50, seed=1)
        got = reference.sample(problem, at, **operands.present())
        np.testing.assert_allclose(got, expected.ravel()[at], rtol=1e-10, atol=1e-10)


def test_positions_hold_every_corner_and_repeat():
    problem = ConvProblem.parse("mb8ic64ih64oc128kh9")
    at = reference.positions(problem, 256, seed=5)
    corners = itertools.product(*[(0, size - 1) for size in problem.y_shape])
    assert {int(np.ravel_multi_index(corner, problem.y_shape)) for corner in corners} <= set(at)
    assert 200 < len(at) <= 256
    assert (at == reference.positions(problem, 256, seed=5)).all()
    assert len(reference.positions(problem.replace(mb=0))) == 0
    tiny = ConvProblem.parse("ih3kh3oc2")
    assert reference.positions(tiny, 256).tolist() == [0, 1]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_sample_of_a_big_problem_costs_little(direction):
    problem = ConvProblem.parse("mb2ic64ih112oc128kh3ph1").replace(direction=direction)
    shapes_read = {name: getattr(problem, name + "_shape") for name in "xwy" if name != problem.written}
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes_read.items()}
    values = reference.sample(problem, reference.positions(problem, 64), **arrays)
    assert np.isfinite(values).all()
    assert values.max() > 0


def test_epilogue_order():
    problem = ConvProblem.parse("ic1iw3oc1kw1+bias+residual+relu")
    one = np.ones((1, 1, 1))
    x = np.array([[[-3.0, 0.0, 2.0]]])
    got = reference.compute(problem, x=x, w=one, bias=np.array([1.0]), residual=np.full((1, 1, 3), 1.0))
    assert got.tolist() == [[[0.0, 2.0, 4.0]]]


def test_missing_and_misshapen_operands_are_named():
    problem = ConvProblem.parse("ic2iw5oc3kw3+bias")
    x, w = np.ones(problem.x_shape), np.ones(problem.w_shape)
    with pytest.raises(InvalidArgument, match="needs bias"):
        reference.compute(problem, x=x, w=w)
    with pytest.raises(InvalidArgument, match=r"w must have shape \(3, 2, 3\)"):
        reference.compute(problem, x=x, w=w[:, :1], bias=np.ones(3))
    with pytest.raises(InvalidArgument, match="x must have shape"):
        reference.sample(problem, np.array([0]), w=w, bias=np.ones(3))


def test_relative_error():
    assert reference.relative_error(np.array([3.0, 4.0]), np.array([3.0, 4.0])) == 0
    assert reference.relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
    assert reference.relative_error(np.array([np.nan, 4.0]), np.array([3.0, 4.0])) == float("inf")
    assert reference.relative_error(np.array([np.inf]), np.array([np.inf])) == float("inf")
    assert reference.relative_error(np.zeros(3), np.zeros(3)) == 0
    assert reference.relative_error(np.ones(3), np.zeros(3)) == float("inf")
    assert reference.relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0


@pytest.mark.parametrize("entry", ENTRIES[::4], ids=IDS[::4])
def test_against_pytorch(entry):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: peers)")
    problem = entry.problem
    geometry = options_of(problem)
    random = np.random.default_rng(0)
    x, w, dy = (torch.from_numpy(random.standard_normal(getattr(problem, name + "_shape"))) for name in "xwy")
    x.requires_grad_(), w.requires_grad_()
    pads = [side for pair in reversed(geometry["padding"]) for side in pair]
    function = getattr(torch.nn.functional, f"conv{problem.ndim}d")
    keywords = {name: geometry[name] for name in ("stride", "dilation", "groups")}
    y = function(torch.nn.functional.pad(x, pads), w, None, **keywords)
    y.backward(dy)
    arrays = {"x": x.detach().numpy(), "w": w.detach().numpy(), "y": dy.numpy()}
    expected = {"fwd": y.detach().numpy(), "bwd_data": x.grad.numpy(), "bwd_weights": w.grad.numpy()}
    for direction, result in expected.items():
        got = reference.compute(problem.replace(direction=direction), **arrays)
        assert reference.relative_error(got, result) < 1e-13
