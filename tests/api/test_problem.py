"""ConvProblem: sizes, refusals, text both ways; and the shape tables that are written in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import FUZZ, problems

from convdispatch import ConvProblem, InvalidProblem
from convdispatch.api.errors import InvalidArgument
from convdispatch.api.problem import DIRECTIONS, MATHS
from convdispatch.measurement import shapes


@given(problems(), st.sampled_from(MATHS))
@settings(FUZZ, max_examples=300)
def test_text_and_back_is_the_same_problem(problem, math):
    problem = problem.replace(math=math)
    assert ConvProblem.parse(str(problem)) == problem
    assert hash(ConvProblem.parse(str(problem))) == hash(problem)


@given(problems())
@settings(FUZZ, max_examples=200)
def test_the_last_output_reads_inside_and_one_more_would_not(problem):
    for axis in problem.axes:
        size, kernel, stride, dilation = (getattr(problem, letter + axis) for letter in "iksd")
        padded = size + getattr(problem, "p" + axis) + getattr(problem, f"p{axis}_r")
        outputs, reach = getattr(problem, "o" + axis), dilation * (kernel - 1)
        assert (outputs - 1) * stride + reach < padded <= outputs * stride + reach


def test_sizes_are_pytorch_s_with_dilation():
    # 10 wide, kernel 3, dilation 2: taps at 0, 2, 4, so 6 places, where a formula without the -1 says 5.
    assert ConvProblem.parse("iw10kw3dw2").ow == 6
    assert ConvProblem.parse("ih224kh7sh2ph3").y_shape == (1, 1, 112, 112)


def test_square_text_fills_the_other_axis():
    problem = ConvProblem.parse("mb1ic4ih8oc6kh3ph1")
    assert (problem.iw, problem.kw, problem.pw, problem.ndim) == (8, 3, 1, 2)
    assert ConvProblem.parse("iw8kw3").ndim == 1
    assert ConvProblem.parse("id8kd3").x_shape == (1, 1, 8, 8, 8)


def test_shapes_follow_the_layout():
    problem = ConvProblem.parse("g2mb3ic4ih5iw6oc8kh3kw2")
    assert problem.x_shape == (3, 4, 5, 6)
    assert problem.w_shape == (8, 2, 3, 2)
    assert problem.y_shape == (3, 8, 3, 5)
    last = problem.replace(layout="nhwc")
    assert last.x_shape == (3, 5, 6, 4)
    assert last.w_shape == (8, 3, 2, 2)
    assert last.y_shape == (3, 3, 5, 8)
    assert [problem.replace(direction=d).written for d in DIRECTIONS] == ["y", "x", "w"]


REFUSED = {
    "mb1ic4ih2oc4kh5": "fit into the padded input",
    "ih4kh3dh2": "fit into the padded input",
    "g3ic4oc6iw5kw1": "input channels must be a multiple of groups",
    "g3ic6oc4iw5kw1": "output channels must be a multiple of groups",
    "ic0iw5kw1": "input channels must be 1 or more",
    "iw5kw1sw0": "stride must be 1 or more",
    "iw5kw1dw0": "dilation must be 1 or more",
    "iw5kw0": "kernel size must be 1 or more",
    "iw5iw6kw1": "twice",
    "iw5kw1xx3": "cannot read 'xx3'",
    "iw5kw1ow9": "ow9",
    "mb4ic4": "size along w",
    "iw5kw1+softmax": "activation",
    "iw5kw1+leaky_relu(a)": "numbers",
    "iw5kw1+relu6(3)": "at most 0",
    "bwd_weights_iw5kw1+bias": "bwd_weights",
    "iw5kw1+relu+accumulate": "accumulate",
    "": "size along w",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_say_what_is_wrong(text):
    with pytest.raises(InvalidProblem, match=REFUSED[text].replace("+", r"\+")):
        ConvProblem.parse(text)


@pytest.mark.parametrize(
    "wrong",
    [{"direction": "up"}, {"dtype": "int16"}, {"layout": "chwn"}, {"math": "exact"}, {"mb": -1}, {"pw": -1},
     {"iw": 2.5}, {"iw": True}, {"kw": "3"}, {"ndim": 4}, {"layout": None}],
)  # fmt: skip
def test_fields_are_checked(wrong):
    with pytest.raises(InvalidProblem):
        ConvProblem(**{"iw": 5, "kw": 3} | wrong)


def test_an_axis_that_ndim_leaves_out_must_be_trivial():
    with pytest.raises(InvalidProblem, match="no h axis"):
        ConvProblem(ndim=1, ih=2, iw=5)


@pytest.mark.parametrize("name", shapes.names())
def test_tables_hold_named_problems(name):
    entries = shapes.load(name)
    assert entries
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(entry.problem.flops > 0 and entry.count >= 1 for entry in entries)


def test_nets_have_the_arithmetic_that_was_published():
    # Forward GFLOP a net, from convnet-benchmarks' definitions; ResNet-50 is 4.09 GMAC an image.
    def gflop(name):
        return sum(entry.problem.flops * entry.count for entry in shapes.load(name)) / 1e9

    assert gflop("convnet") == pytest.approx(914.276, abs=0.01)
    assert gflop("alexnet") == pytest.approx(167.825, abs=0.01)
    assert gflop("overfeat") == pytest.approx(683.899, abs=0.01)
    assert gflop("vgg_a") == pytest.approx(958.138, abs=0.01)
    assert gflop("googlenet") == pytest.approx(404.901, abs=0.01)
    assert gflop("resnet50_full") / 64 == pytest.approx(2 * 4.087, abs=0.01)
    assert sum(entry.count for entry in shapes.load("resnet50_full")) == 53
    assert sum(entry.count for entry in shapes.load("mobilenet")) == 28


def test_table_text():
    entries = shapes.parse("# a comment\niw5kw3  a *4\n\niw6kw3 b # why\niw7kw3\niw8kw3 *2\n")
    assert [(entry.name, entry.count) for entry in entries] == [("a", 4), ("b", 1), ("iw7kw3", 1), ("iw8kw3", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [("iw5kw3 a\niw5kw9 b", "t.txt:2: the kernel"), ("iw5kw3 a\n\niw5kw2 a", "t.txt:3: 'a' is named on line 1"),
     ("iw5kw3 a b c", "t.txt:1: expected")],
)  # fmt: skip
def test_table_errors_name_file_and_line(text, message):
    with pytest.raises(InvalidProblem, match=message):
        shapes.parse(text, "t.txt")
    with pytest.raises(InvalidArgument, match="resnet50_full"):
        shapes.load("nosuch")
