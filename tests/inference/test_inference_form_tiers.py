"""A cold net's predicted form answers while the others are built aside, and calls in turns say which one stays."""

import threading

import numpy as np
import pytest
import small_net

from convdispatch import inference
from convdispatch.api import policy
from convdispatch.inference import building, choice_cache, form_tiers
from convdispatch.inference.form_benchmark import Verdict

SHAPE = (1, 3, 13, 13)
pytestmark = pytest.mark.usefixtures("all_forms")


class World:
    """Nets are cold; the other forms wait for ``gate``; the ``best``th form of all is found fastest."""

    def __init__(self, queue, monkeypatch, tmp_path) -> None:
        self.gate, self.best, self.kept, self.error = threading.Event(), 1, [], None
        self.net = small_net.net(queue)
        self.net.eval()
        traced, plans, real = building.traced_and_fused, building._plans, form_tiers.verdict_of

        def cold(*given):
            building.thread.compiled += 1
            return traced(*given)

        def gated(*given):
            if threading.current_thread().name == "convdispatch-forms":
                self.gate.wait(600)
                if self.error is not None:
                    raise self.error
            return plans(*given)

        def verdict(series, favourite):
            found = real(series, favourite)
            return Verdict(self.best, found.ms, True, 0.0)

        monkeypatch.setattr(building, "traced_and_fused", cold)
        monkeypatch.setattr(building, "_plans", gated)
        monkeypatch.setattr(form_tiers, "verdict_of", verdict)
        monkeypatch.setattr(form_tiers, "LEAST", 1)
        monkeypatch.setattr(form_tiers, "compilers", lambda device: 2)
        monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
        monkeypatch.setattr(choice_cache, "store", lambda key, *choice: self.kept.append(choice[:1]))
        monkeypatch.delenv("CONVDISPATCH_TIER", raising=False)

    def built(self, **options):
        return inference.build(self.net, SHAPE, **({"recall": True} | options))

    def other(self):
        """Let the others be built."""
        self.gate.set()

    def expected(self, x):
        with policy(tier="full"):
            return inference.build(self.net, SHAPE)(x)


@pytest.fixture
def world(queue, monkeypatch, tmp_path):
    if building.runtime.device_info(queue.device).type != "cpu":
        pytest.skip("nets of other devices are built whole")
    made = World(queue, monkeypatch, tmp_path)
    yield made
    made.gate.set()


def calls(form, x, expected, count):
    """Results of a number of calls, all right."""
    for _ in range(count):
        np.testing.assert_allclose(form(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("best", [0, 1])
def test_one_form_answers_then_all_in_turns_then_the_fastest(world, best):
    world.best, x = best, small_net.normal(*SHAPE)
    expected, form = world.expected(x), world.built()
    tiers, layouts = form.watch, {form.layout}
    assert len(form.tried) == 1
    calls(form, x, expected, 20)  # however many: the others are not there
    assert form.watch is tiers
    world.other()
    tiers.thread.join()
    several = 2 * (form_tiers.SAMPLES + 1)
    calls(form, x, expected, several - 1)
    assert form.watch is tiers
    calls(form, x, expected, 1)
    assert form.watch is None
    assert len(form.tried) == 2
    assert (form.layout in layouts) == (best == 0)
    assert world.kept == [(form.layout,)]
    with policy(tier="full"):
        alone = inference.build(world.net, SHAPE, layout=form.layout)
    np.testing.assert_array_equal(form(x), alone(x))
    assert [layer.problem for layer in form.layers] == [layer.problem for layer in alone.layers]
    form.inputs[0].queue.finish()
    np.testing.assert_array_equal(form(x), alone(x))


@pytest.mark.parametrize("held", ["inputs", "output", "run"])
def test_a_caller_that_holds_tensors_keeps_their_form(world, held):
    form = world.built()
    layout, tiers = form.layout, form.watch
    getattr(form, held)() if held == "run" else getattr(form, held)
    world.other()
    tiers.thread.join()
    x = small_net.normal(*SHAPE)
    for _ in range(2 * form_tiers.SAMPLES + 4):
        form(x)
    assert (form.layout, form.watch, world.kept) == (layout, None, [])


def test_what_goes_wrong_aside_costs_no_call(world, monkeypatch):
    x = small_net.normal(*SHAPE)
    expected = world.expected(x)
    world.error = MemoryError("no room for another form")
    world.other()
    form = world.built()
    form.watch.thread.join()
    calls(form, x, expected, 2)
    assert form.watch is None
    world.error = None
    form = world.built()
    form.watch.thread.join()
    (other,) = form.watch._others
    monkeypatch.setattr(other, "call_on_host", lambda *given: [][0])
    with pytest.raises(inference.building.InvalidArgument):
        form(x[:, :2])
    assert form.watch is not None  # the call was wrong, no form
    calls(form, x, expected, 4)
    assert form.watch is None


@pytest.mark.parametrize(
    ("under", "options"),
    [({"tier": "full"}, {}), ({"deterministic": True}, {}), ({}, {"recall": False})],
)
def test_who_waits_gets_the_fastest_at_once(world, under, options):
    with policy(**under):
        form = world.built(**options)
    assert len(form.tried) == 2
    assert form.watch is None


def test_the_environment_and_one_processor_wait(world, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv("CONVDISPATCH_TIER", "full")
        assert len(world.built().tried) == 2
    monkeypatch.setattr(form_tiers, "compilers", lambda device: 1)
    assert len(world.built().tried) == 2


def test_arrays_of_another_library_take_turns_too(world):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    x = small_net.normal(*SHAPE)
    expected, form = world.expected(x), world.built()
    tiers = form.watch
    world.other()
    tiers.thread.join()
    for _ in range(2 * (form_tiers.SAMPLES + 1)):
        np.testing.assert_allclose(form(torch.from_numpy(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert (form.watch, len(world.kept)) == (None, 1)


def test_whoever_waits_gets_the_fastest_form(world):
    x = small_net.normal(*SHAPE)
    expected, form = world.expected(x), world.built()
    world.other()
    assert form_tiers.settle_all() == 1
    assert form.watch is None
    assert world.kept == [(form.layout,)]
    assert form_tiers.settle_all() == 0, "nothing is left to wait for"
    calls(form, x, expected, 1)
