"""A later process of enable() on a CPU ranks nothing: it runs what an earlier one chose, until what decides changes."""

import json

import pytest
import torch

import convdispatch.torch as ct
from convdispatch import policy
from convdispatch.calls.planner_pool import pool as pools
from convdispatch.device import runtime
from convdispatch.device.cache import artifact_store, keys
from convdispatch.selection import dispatch, solver_query
from convdispatch.selection.choice import lockfile, ranking
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.plugins.loader import plugins
from convdispatch.torch import ranks

F = torch.nn.functional


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch, folder):
    """Kernels may be there from the test before, choices are not."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(folder))
    forget_choices(folder)
    another_process(monkeypatch)
    yield
    dispatch.forget()


def forget_choices(folder) -> None:
    for each in folder.glob("*.decisions"):
        each.unlink()


@pytest.fixture
def asked(monkeypatch):
    """What solvers were asked since the process began; what a call costs tells whether one thread computes it."""
    found, ask = [], solver_query.ask

    def note(solver, what, *more):
        if what not in ("serves", "cost"):
            found.append(what)
        return ask(solver, what, *more)

    monkeypatch.setattr(solver_query, "ask", note)
    return found


def another_process(monkeypatch) -> None:
    monkeypatch.setattr(pools, "_pools", {})
    dispatch.forget()


@pytest.fixture
def planned(monkeypatch):
    """What was planned since the process began."""
    found, make = [], dispatch.make
    monkeypatch.setattr(dispatch, "make", lambda *given: found.append(make(*given)) or found[-1])
    return found


def chosen(planned) -> list:
    return [(str(each.problem), each.solver.name, dict(each.config), each.math, each.source) for each in planned]


def step() -> list[bytes]:
    """The bytes of a training step's results and gradients."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 6, 3, padding=1),
        torch.nn.Conv2d(6, 6, 3, stride=2, groups=6),
        torch.nn.Conv2d(6, 8, 1, bias=False),
        torch.nn.Conv2d(8, 8, 5, padding=2, groups=2),
        torch.nn.ConvTranspose2d(8, 4, 2, stride=2),
    ]
    x = torch.randn(2, 3, 14, 13, requires_grad=True)
    with ct.enable():
        y = torch.nn.Sequential(*layers)(x)
        y.square().sum().backward()
    tensors = [y, x.grad, *(each.grad for layer in layers for each in layer.parameters())]
    return [each.detach().numpy().tobytes() for each in tensors]


def test_the_next_process_runs_the_same_and_ranks_nothing(asked, planned, monkeypatch):
    results = step()
    first = chosen(planned)
    assert "configs" in asked
    assert len(first) > 10
    another_process(monkeypatch)
    asked.clear()
    planned.clear()
    monkeypatch.setattr(ranking, "rank", lambda *given: pytest.fail("solvers are ranked"))
    monkeypatch.setattr(ranking, "_first_cheaply", lambda *given: pytest.fail("solvers are ranked"))
    assert step() == results
    assert chosen(planned) == first
    assert not asked


@pytest.mark.parametrize("how", [{"deterministic": True}], ids=str)
def test_what_is_promised_more_is_ranked(asked, monkeypatch, how):
    step()
    another_process(monkeypatch)
    asked.clear()
    with policy(**how):
        step()
    assert asked


def call(planned):
    """What a convolution runs."""
    with ct.enable():
        F.conv2d(torch.ones(1, 3, 9, 10), torch.ones(5, 3, 3, 3))
    return planned[-1]


def last_choice(prepared):
    """The solver and configuration that nobody would choose."""
    found = rank(prepared.problem, runtime.device_info(prepared.context.devices[0]))[-1]
    assert found.solver.name != prepared.solver.name
    return found.solver.name, dict(found.config)


def test_what_a_pack_fixes_comes_first_and_is_not_kept(planned, monkeypatch, folder):
    usual = call(planned)
    device, (name, config) = usual.context.devices[0], last_choice(usual)
    dispatch.make(plugins().solvers[name], config, usual.problem, usual.context)  # no kernel is missing in the pack
    pack = artifact_store.Gathered(keys.identity(device))
    pack.name, pack.tables["decisions"] = "one.cdpack", {str(usual.problem): {"solver": name, "config": config}}
    for prepare in (
        bool,
        lambda: forget_choices(folder),
    ):  # where it was kept how the problem is computed, and where not
        prepare()
        another_process(monkeypatch)
        artifact_store.put_in_force(pack)
        try:
            found = call(planned)
        finally:
            artifact_store.take_out_of_force(pack)
        assert (found.solver.name, found.source) == (name, "plan pack one.cdpack")
        another_process(monkeypatch)
        assert chosen([call(planned)]) == chosen([usual])


def test_what_a_lock_file_fixes_comes_first_and_is_not_kept(planned, monkeypatch, folder):
    usual = call(planned)
    name, config = last_choice(usual)
    for prepare in (bool, lambda: forget_choices(folder)):
        prepare()
        another_process(monkeypatch)
        with monkeypatch.context() as locked:
            locked.setattr(lockfile, "_agreed", {str(usual.problem): lockfile.Decision(name, config)})
            found = call(planned)
            assert found.solver.name == name
        another_process(monkeypatch)
        assert chosen([call(planned)]) == chosen([usual])


def test_what_ranks_agreed_on_comes_first_and_is_not_kept(planned, monkeypatch):
    usual = call(planned)
    name, config = last_choice(usual)
    another_process(monkeypatch)

    class OfAnotherRank:
        def compare_set(self, key, before, mine):
            assert json.loads(mine)[0] == usual.solver.name
            return json.dumps([name, config])

    with monkeypatch.context() as together:
        together.setattr(lockfile, "_agreed", {})
        together.setattr(ranks, "many", lambda: True)
        together.setattr(ranks, "meet", OfAnotherRank)
        assert call(planned).solver.name == name
    another_process(monkeypatch)
    assert chosen([call(planned)]) == chosen([usual])
