"""The nets' tables against what their papers say of them: multiply-adds, parameters, layers, sizes."""

from __future__ import annotations

import math

import pytest

from convdispatch.api.problem import ConvProblem
from convdispatch.measurement import shapes

# Forward multiply-adds of a picture in thousand millions, as the papers give them, and how closely they can be met:
# Inception-v3's abstract says "5 billion" of what its code computes with 5.7.
MULTIPLY_ADDS = {
    "mobilenet_v3": (0.219, 0.015),
    "efficientnet_b0": (0.39, 0.015),
    "convnext_t": (4.5, 0.015),
    "resnext50": (4.2, 0.015),
    "inception_v3": (5.0, 0.15),
    "densenet121": (2.83, 0.005),
}
# Weights that are summed, in millions: the papers' parameters, which count biases and normalisation too.
PARAMETERS = {
    "mobilenet_v3": (5.4, 0.015),
    "efficientnet_b0": (5.3, 0.015),
    "convnext_t": (28.6, 0.005),
    "inception_v3": (25, 0.05),
    "densenet121": (7.98, 0.015),
    "unet": (31.0, 0.002),
}
LAYERS = {"densenet121": 121, "resnext50": 53, "unet": 23, "inception_v3": 95, "convnext_t": 1 + 3 + 3 * 18 + 1}
NETS = sorted({*MULTIPLY_ADDS, *PARAMETERS, "unet3d", "wavenet"})


def weights(name: str) -> int:
    return sum(entry.count * math.prod(entry.problem.w_shape) for entry in shapes.load(name))


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_multiply_adds_are_the_papers(name):
    found = sum(entry.count * entry.problem.flops / 2 / entry.problem.mb for entry in shapes.load(name)) / 1e9
    told, within = MULTIPLY_ADDS[name]
    assert found == pytest.approx(told, rel=within)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_papers(name):
    told, within = PARAMETERS[name]
    assert weights(name) / 1e6 == pytest.approx(told, rel=within)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_the_papers(name):
    assert sum(entry.count for entry in shapes.load(name)) == LAYERS[name]


def test_the_3d_unet_has_the_papers_19069955_parameters():
    """Its count holds the weights, and biases but for the up-convolutions': no more, so every shape is the paper's."""
    biases = sum(entry.problem.oc for entry in shapes.load("unet3d") if entry.problem.direction == "fwd")
    assert weights("unet3d") + biases == 19_069_955


def test_wavenet_sees_what_the_paper_says():
    entries = shapes.load("wavenet")
    gates = [entry for entry in entries if entry.name.startswith("gate")]
    assert [entry.problem.dw for entry in gates] == [2**e for e in range(10)]
    assert all(entry.count == 3 for entry in gates)
    assert 1 + sum(entry.problem.dw * (entry.problem.kw - 1) for entry in gates) == 1024
    assert all((p.pw, p.pw_r) == (p.dw * (p.kw - 1), 0) for p in (e.problem for e in entries)), "causal"


@pytest.mark.parametrize("name", NETS)
def test_each_layer_takes_what_another_gives(name):
    """An image's sides appear as some layer's output, or pooled by two from one: no shape stands alone."""
    entries = shapes.load(name)
    given = {sides for entry in entries for sides in outputs(entry.problem)} | {(1, 1, 1)}
    for entry in entries[1:]:
        assert inputs(entry.problem) in given, f"{entry.name}: {entry.problem}"


def inputs(problem: ConvProblem) -> tuple[int, ...]:
    return sides(problem, "o" if problem.direction == "bwd_data" else "i")


def outputs(problem: ConvProblem) -> list[tuple[int, ...]]:
    """As they are, cropped by nothing, and pooled by two, of windows of two or of three with and without a pad."""
    out = sides(problem, "i" if problem.direction == "bwd_data" else "o")
    pooled = [tuple(max(1, (side + more) // 2) for side in out) for more in (0, 1, -1)]
    return [out, *pooled]


def sides(problem: ConvProblem, letter: str) -> tuple[int, ...]:
    return tuple(getattr(problem, letter + axis) for axis in "dhw")
