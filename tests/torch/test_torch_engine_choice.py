"""Which engine computes a graph: races are decided once, and mode="max-autotune" measures what nobody has measured."""

import copy

import pytest
import torch

import convdispatch.torch as ct
from convdispatch.inference.form_benchmark import Verdict
from convdispatch.selection import decision_store
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.graph import engine_choice, forms, inductor, tuning

nn = torch.nn
with_compiler = pytest.mark.skipif(not inductor.available("cpu"), reason="no C++ compiler")
uncompiled = pytest.mark.usefixtures("uncompiled_by_inductor")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Nothing was decided on this machine."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    decision_store.forget()
    torch._dynamo.reset()
    ct.reset_counters()
    yield
    monkeypatch.undo()
    decision_store.forget()


def products() -> nn.Module:
    """A net whose work is matrix products."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 64), nn.Linear(64, 8)).eval()


def run_and_check(net: nn.Module, x: torch.Tensor, **options) -> Backend:
    backend = Backend(**options)
    with torch.no_grad():
        got, exact = torch.compile(net, backend=backend)(x), copy.deepcopy(net).double()(x.double())
    assert float((got.double() - exact).norm() / exact.norm()) < 2e-6
    return backend


def words(backend: Backend) -> str:
    (found,) = backend.graphs[0].descriptions().values()
    return found


@pytest.fixture
def races(monkeypatch):
    """The candidates' numbers of each race; ``winner`` wins them."""

    class Races(list):
        winner, noise = 1, 0.0

    held = Races()

    def faster(candidates, inputs):
        held.append(len(candidates))
        return Verdict(held.winner, (1.0, 1.0), agreed=True, noise=held.noise)

    monkeypatch.setattr(engine_choice, "faster", faster)
    return held


@pytest.fixture
def uncompiled_by_inductor(monkeypatch):
    """Inductor's candidate is the graph itself: who races is asked, not what a C++ compiler makes of it."""
    monkeypatch.setattr(inductor, "available", lambda device: True)
    monkeypatch.setattr(inductor, "_compiled_aside", lambda graph, inputs, patches: graph)


@with_compiler
@pytest.mark.parametrize("winner", [0, 1])
def test_a_race_is_decided_once_and_the_loser_is_not_built_again(races, winner, monkeypatch):
    races.winner, x = winner, torch.randn(2, 3, 12, 12)
    first = words(run_and_check(products(), x))
    assert races == [2]
    torch._dynamo.reset()
    decision_store.forget()  # as another process, which reads the file

    def refused(*given, **named):
        raise AssertionError("the loser was built")

    if winner:
        monkeypatch.setattr(forms.GraphForms, "_build_form", refused)
    else:
        monkeypatch.setattr(inductor, "compiled_frozen", refused)
    second = run_and_check(products(), x)
    assert races == [2], "raced again"
    assert ("inductor" in words(second)) == ("inductor" in first) == bool(winner)


@uncompiled
def test_other_sizes_are_another_race(races):
    for batch in (2, 3):
        torch._dynamo.reset()
        run_and_check(products(), torch.randn(batch, 3, 12, 12))
    assert races == [2, 2]


@uncompiled
def test_layer_norms_between_convolutions_race_too(races):
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.norm(self.one(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))

    torch.manual_seed(0)
    run_and_check(Normed().eval(), torch.randn(1, 3, 12, 12))
    assert races == [2]


@uncompiled
def test_a_noisy_verdict_is_judged_anew(races):
    races.noise, x = 1.0, torch.randn(2, 3, 12, 12)
    for expected in ([2], [2, 2], [2, 2]):  # two measurements that agree, then none
        torch._dynamo.reset()
        run_and_check(products(), x)
        assert races == expected


@uncompiled
def test_convolutions_alone_and_deterministic_graphs_do_not_race(races):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    assert "commands" in words(run_and_check(net, torch.randn(1, 3, 16, 16)))
    torch._dynamo.reset()
    try:
        torch.use_deterministic_algorithms(True)
        assert "commands" in words(run_and_check(products(), torch.randn(2, 3, 12, 12)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not races


@uncompiled
def test_convolutions_alone_race_where_a_search_is_asked_for(races, monkeypatch):
    monkeypatch.setattr(tuning, "find", lambda *given, **named: None)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    run_and_check(net, torch.randn(1, 3, 16, 16), mode="max-autotune")
    assert races == [2]


@pytest.mark.parametrize("engine", ["form", "operators"])
def test_max_autotune_measures_each_convolution_of_the_graph(engine, monkeypatch):
    measured = []
    monkeypatch.setattr(tuning, "find", lambda problem, device, budget_ms: measured.append(problem))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)).eval()
    run_and_check(net, torch.randn(1, 3, 16, 16), mode="max-autotune", options={"engine": engine})
    channels = {(each.ic, each.oc, each.ih) for each in measured}
    assert channels >= {(3, 16, 16), (16, 16, 14), (16, 16, 12)}, measured
    measured.clear()
    torch._dynamo.reset()
    run_and_check(net, torch.randn(1, 3, 16, 16), options={"engine": engine})
    assert not measured, "nobody asked for measurements"


def test_an_interrupt_ends_the_measurements_and_the_next_run_goes_on(monkeypatch):
    known, measured = [], []

    def find(problem, device, budget_ms):
        if len(measured) == 1:
            measured.append("interrupted")
            raise KeyboardInterrupt
        measured.append(problem)
        known.append(problem)

    monkeypatch.setattr(tuning, "find", find)
    monkeypatch.setattr(tuning, "why_find", lambda problem, *given, **named: problem not in known)
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)).eval(), torch.randn(1, 3, 16, 16)
    options = {"mode": "max-autotune", "options": {"engine": "form"}}
    with pytest.raises(KeyboardInterrupt):
        run_and_check(net, x, **options)
    assert measured[1:] == ["interrupted"]
    torch._dynamo.reset()
    run_and_check(net, x, **options)
    assert len(set(measured)) == len(measured), "a problem was measured twice"
    assert len(known) >= 2
