"""GoogLeNet's branches on several queues: where they stand, that nothing is overtaken, and that the clock decides."""

from __future__ import annotations

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.api import InvalidArgument
from convdispatch.inference import building, form_benchmark
from convdispatch.models.googlenet import Inception

pytestmark = pytest.mark.usefixtures("all_forms")


class Two(nn.Module):
    """Two Inception modules in a row: branches, where they meet, and branches again."""

    def __init__(self, queue, layout="nchw"):
        self.first = Inception(12, (8, 8, 16, 8, 8, 8), layout, queue)
        self.second = Inception(40, (8, 8, 8, 8, 16, 8), layout, queue)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.fixture
def two(queue):
    return Two(queue).eval()


def pictures(seed):
    return np.random.default_rng(seed).standard_normal((2, 12, 9, 9), dtype=np.float32)


def test_four_branches_stand_on_four_queues(two, queue):
    built = inference.build(two, (2, 12, 9, 9), queue=queue, queues=4, layout="nchw")
    assert built.queues == 4
    names = [layer.name for layer in built.layers]
    joins = [place for place, name in enumerate(names) if name == "concatenate"]
    assert len(joins) == 2
    steps = built._program.schedule.steps
    for begin, end in ((0, joins[0]), (joins[0] + 1, joins[1])):
        inside = [step for step in steps if begin <= step.key < end]
        assert len({step.queue for step in inside}) == 4
    by_key = {step.key: step for step in steps}
    for join in joins:  # it waits for all but what its own queue computed
        assert len(by_key[join].after) == 3


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("queues", [2, 3, 4])
def test_nothing_is_overtaken(two, queue, layout, queues):
    """Many runs, each on other pictures, without waiting between them: a missing event would mix them up."""
    alone = inference.build(two, (2, 12, 9, 9), queue=queue, queues=1, layout=layout)
    built = inference.build(two, (2, 12, 9, 9), queue=queue, queues=queues, layout=layout)
    assert built.queues == queues
    from convdispatch.tensor import Tensor

    given = [Tensor.from_numpy(pictures(seed), queue) for seed in range(20)]
    got = [built(x) for x in given]
    for mine, x in zip(got, given, strict=True):
        np.testing.assert_allclose(mine.numpy(), alone(x).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_clock_decides(two, queue, monkeypatch, overlap):
    """Where a device overlaps queues the form on several is faster when timed, elsewhere slower: events cost."""
    several = 0.5 if overlap else 1.5
    monkeypatch.setattr(form_benchmark, "_alone", lambda form, n: [several if form.queues > 1 else 1.0] * n)
    built = inference.build(two, (2, 12, 9, 9), queue=queue)
    assert built.queues == (4 if overlap else 1)
    assert len(built.tried) == 4
    assert sum("4 queues" in line for line in built.tried) == 2


@pytest.mark.parametrize("said", [{}, {"for_": "latency"}, {"for_": "throughput"}])
def test_a_form_is_judged_by_what_it_is_for(two, queue, monkeypatch, said):
    """Several queues that are fast while calls follow each other, and slow for one that is waited for."""
    clock = Clock(monkeypatch)
    built = inference.build(two, (2, 12, 9, 9), queue=queue, layout="nchw", **said)
    assert built.queues == (4 if said.get("for_") == "throughput" else 1)
    assert clock.waits


@pytest.mark.parametrize(("said", "error"), [({"for_": "speed"}, InvalidArgument), ({"fore": "latency"}, TypeError)])
def test_a_purpose_that_there_is_not(two, queue, said, error):
    with pytest.raises(error, match=r"latency|fore"):
        inference.build(two, (2, 12, 9, 9), queue=queue, **said)


class Clock:
    """Time as programs pass it: a run on one queue takes 1 s, one on several 0.5 s; a wait costs these 1 s more."""

    def __init__(self, monkeypatch):
        self.now, self.waits = 0.0, 0
        monkeypatch.setattr(form_benchmark.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(building.InferenceNet, "run", lambda form: self.pass_on(0.5 if form.queues > 1 else 1.0))
        monkeypatch.setattr(building.InferenceNet, "queue", property(lambda form: self))
        monkeypatch.setattr(building.InferenceNet, "__call__", self.call())

    def finish(self):
        """The end of calls in a row."""
        self.waits += 1

    def call(self):
        """A call that is waited for."""

        def call(form, *given):
            assert [x.shape for x in given] == [(2, 12, 9, 9)]
            self.waits += 1
            self.pass_on(1.5 if form.queues > 1 else 1.0)

        return call

    def pass_on(self, seconds):
        self.now += seconds
