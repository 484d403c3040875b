"""Geometry is an argument: near misses of a layer share a program, and a training step needs few."""

from __future__ import annotations

import pytest
from convdispatch_nvidia.direct.solver import DirectPlan
from convdispatch_nvidia.direct.tiling import DirectTile, DirectTiling
from convdispatch_nvidia.packed.plan import NvidiaPlan
from plans import check_plan
from step_programs import FORMS, problems_of_step, programs

from convdispatch import ConvProblem
from convdispatch.device.programs.kernels import rendering
from convdispatch.tools.targets.described import DESCRIBED, described_context

SMALL = {"bm": 64, "bn": 16, "wm": 1, "wn": 1, "bk": 32, "stages": 3, "format": "half2"}
WEIGHTS = {**SMALL, "bn": 64}
NEAR_MISSES = {
    # a configuration, and problems whose sizes, strides, pads, kernels or numbers of parts differ
    "padded": (SMALL, ("mb2ic64ih6oc16kh3ph1", "mb1ic96ih7iw5oc40kh3ph1", "mb3ic64ih5iw9oc17kh5kw3ph2pw1",
                       "mb1ic128ih8oc8kh3ph1sh2", "mb2ic64ih6oc16kh3ph2")),
    "parts": ({**SMALL, "split": 2}, ("mb1ic64ih6oc16kh3ph1", "mb2ic96ih5iw7oc24kh3ph1sh2")),
    "rows and columns": (SMALL, ("mb1ic64ih6oc16kh3kw1ph1pw0", "mb1ic96ih7iw5oc40kh1kw3ph0pw1",
                                 "mb1ic64ih5oc16kh3ph1")),
    "directions": (SMALL, ("mb1ic64ih6oc16kh3ph1", "bwd_data_mb1ic40ih7iw5oc96kh3ph1")),
    "parts of taps": (SMALL, ("mb2ic72ih6oc16kh3ph1", "mb1ic56ih7iw5oc40kh3ph1", "mb1ic40ih6iw5oc16kh3ph1sh2")),
    "slices of many taps": (SMALL, ("mb2ic24ih6oc16kh3ph1", "mb1ic16ih7iw5oc40kh3ph1", "mb1ic8ih6iw5oc16kh3ph1")),
    "parts of channels": (SMALL, ("mb1ic37ih6oc16kh3ph1", "mb2ic43ih5iw7oc40kh3ph1sh2")),
    "flat": (SMALL, ("mb2ic64ih6oc16kh1", "mb1ic96ih7iw5oc40kh1", "mb3ic128ih1iw9oc17kh1")),
    "groups": (SMALL, ("mb1ic128ih6oc32kh3ph1g2", "mb2ic192ih5iw7oc51kh3ph1g3")),
    "gradient": (SMALL, ("bwd_data_mb2ic16ih6oc64kh3ph1", "bwd_data_mb1ic40ih7iw5oc96kh3ph1")),
    "strided gradient": (SMALL, ("bwd_data_mb2ic16ih6oc64kh3ph1sh2", "bwd_data_mb1ic40ih10iw8oc96kh3ph1sh2")),
    "weights": (WEIGHTS, ("bwd_weights_mb2ic24ih6oc64kh3ph1", "bwd_weights_mb3ic32ih7iw5oc80kh3ph1sh2")),
    "channels last": ({**SMALL, "format": "float16"},
                      ("f16_nhwc_mb2ic64ih6oc16kh3ph1", "f16_nhwc_mb1ic96ih7iw5oc40kh3ph1")),
}  # fmt: skip


def of_forms(texts):
    """The texts without those that compute scales."""
    return [text for text in texts if "void marks(" not in text]


@pytest.mark.usefixtures("item_by_item")
@pytest.mark.parametrize("kind", NEAR_MISSES)
def test_near_misses_share_their_programs(queue, kind, full):
    config, problems = NEAR_MISSES[kind]
    seen: set[str] = set()
    for text in problems if full else problems[-2:]:
        problem = ConvProblem.parse(text)
        with rendering() as texts:
            NvidiaPlan(queue.context, problem, config, "wgmma", emulate=True)
        assert not seen or set(of_forms(texts)) == seen, text
        seen = set(of_forms(texts))
        plan = NvidiaPlan(queue.context, problem, config, "wgmma", emulate=True)
        check_plan(queue, problem, plan, text)
    assert seen


def test_where_items_divide_in_the_main_loop_numbers_are_literals():
    """Windows, and the packing of folded channels; not slices with parts of several taps, which are counted."""
    context, cases = described_context(DESCRIBED["h200"]), (("mb1ic64ih7oc16kh3ph1", {"window": True}, 1),
        ("mb1ic40ih7oc16kh3ph1", {}, 0), ("mb1ic3ih9oc16kh3ph1", {}, 1), ("mb1ic64ih7oc16kh3ph1", {}, 0))  # fmt: skip
    for text, more, literal in cases:
        with rendering() as texts:
            NvidiaPlan(context, ConvProblem.parse(text), {**SMALL, **more}, "wgmma", emulate=True)
        assert sum("#define NUMBERS\n" in each for each in texts) == literal, text


@pytest.mark.usefixtures("item_by_item")
def test_long_sums_of_direct_share_a_program(queue):
    """A sum of few slices has a program of its own."""
    config = {"bm": 32, "bn": 64, "wm": 1, "wn": 2, "bk": 16}
    texts = []
    for text in ("mb1ic112ih8oc40kh1", "mb2ic128ih4iw16oc24kh1", "mb1ic32ih8oc40kh1"):
        problem = ConvProblem.parse(text)
        plan = DirectPlan(queue.context, problem, config, emulate=True)
        check_plan(queue, problem, plan, text)
        texts.append(plan.product_text())
        assert DirectTiling(problem, DirectTile.of(config)).specialised == (problem.ic == 32)
    assert texts[0] == texts[1] != texts[2]


MOST = {("resnet50_full", "float16"): 34, ("resnet50_full", "tf32"): 67}
MORE = {("densenet121", "float16"): 49, ("densenet121", "tf32"): 90, ("efficientnet_b0", "tf32"): 135}


@pytest.mark.parametrize(("net", "form"), [*MOST, *(pytest.param(*each, marks=pytest.mark.full) for each in MORE)])
def test_programs_of_a_training_step(net, form):
    """Fewer is an improvement: write the smaller number here, and in ADR 25."""
    counts = programs(problems_of_step(net, **FORMS[form]), DESCRIBED["h200"])
    assert sum(counts.values()) <= (MOST | MORE)[net, form], counts


def test_a_new_geometry_renders_no_text(monkeypatch):
    """The texts of a second layer of a form come from the first one's: its templates are not rendered again."""
    from convdispatch.device.programs import kernels

    context = described_context(DESCRIBED["h200"])
    rendered: list[str] = []
    real = kernels._template
    monkeypatch.setattr(kernels, "_template", lambda *file: rendered.append(file[1]) or real(*file))
    counts = []
    for text in ("mb2ic64ih6oc16kh3ph1", "mb1ic96ih7iw5oc40kh3ph1", "mb4ic128ih9iw8oc64kh3ph1"):
        with rendering():
            NvidiaPlan(context, ConvProblem.parse(text), SMALL, "wgmma", emulate=True)
        counts.append(len(rendered))
    assert counts[0] <= counts[1] == counts[2]
