"""Tiers under enable(): answers are right from the first call on, ours take over, and nothing else changes."""

import contextlib
import copy
import functools
import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import Future

import pytest
import torch

import convdispatch.torch as ct
from convdispatch import ConvProblem, frozen, load_pack, policy
from convdispatch.api.policy import Policy
from convdispatch.calls.framework import tiers
from convdispatch.calls.planner_pool import pool as pools
from convdispatch.calls.planner_pool import progress_line
from convdispatch.device import runtime
from convdispatch.device.cache import artifact_store
from convdispatch.device.cache.store import DECISIONS
from convdispatch.device.programs import kernels
from convdispatch.selection import dispatch, planpack, solver_query
from convdispatch.torch import ranks
from convdispatch.torch.dispatch import quick_depthwise, routing
from convdispatch.torch.eager import stream_tensors
from convdispatch.torch.eager.planning import TORCH

F = torch.nn.functional
MINUTES = 300.0


@pytest.fixture
def aside(monkeypatch):
    """Every new problem is planned aside, from nothing."""
    monkeypatch.setattr(tiers, "BURST_S", 0.0)
    dispatch.forget()
    ct.reset_counters()
    with ct.enable(), policy(tier="ready"):
        yield
    tiers.drain()


def until(holds) -> None:
    end = time.monotonic() + MINUTES
    while not holds():
        assert time.monotonic() < end, "stuck"
        time.sleep(0.05)


def layer(channels: int = 5, **options):
    torch.manual_seed(channels)
    return torch.nn.Conv2d(3, channels, 3, padding=1, **options)


def moved(step) -> dict[str, int]:
    """What a step added to the counters."""
    before = ct.counters()
    step()
    after = ct.counters()
    return {name: after[name] - before[name] for name in ("ours", "left", "compiling")}


def right(got, expected) -> None:
    assert float((got.detach().double() - expected.detach()).norm() / expected.detach().norm()) < 1e-5


def test_every_step_is_right_while_tiers_change(aside):
    made, x = layer(7), torch.randn(2, 3, 11, 13)
    exact = torch.nn.Conv2d(3, 7, 3, padding=1).double()
    exact.load_state_dict(made.state_dict())
    wide = x.double().requires_grad_()
    exact(wide).square().sum().backward()

    def step() -> None:
        lead = x.clone().requires_grad_()
        made.zero_grad()
        made(lead).square().sum().backward()
        right(lead.grad, wide.grad)
        for mine, other in zip(made.parameters(), exact.parameters(), strict=True):
            right(mine.grad, other.grad)

    step()
    assert ct.counters()["compiling"]
    assert not ct.counters()["ours"]
    until(lambda: moved(step).get("ours") == 2)
    assert ct.counters()["left"] == 0
    before = ct.counters()["compiling"]
    step()
    assert ct.counters()["compiling"] == before


@pytest.mark.parametrize("last", [False, True])
def test_depthwise_layers_do_not_wait_for_cudnns_compiler(aside, monkeypatch, last):
    """PyTorch's library's own kernel answers meanwhile, converted or not; other layers are as PyTorch has them."""
    torch.manual_seed(5)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, stride=(2, 1), padding=(1, 2), groups=3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
        torch.nn.Conv2d(6, 4, 3, groups=2), torch.nn.Conv2d(4, 4, 2, dilation=2, groups=4, bias=False),
    ).eval()  # fmt: skip
    form, asked = torch.channels_last if last else torch.contiguous_format, []
    net = net.to(memory_format=form)
    converted = ct.convert(copy.deepcopy(net))

    def library(x, w, kernel, bias, *lists):
        assert x.is_contiguous()
        assert w.is_contiguous()
        asked.append(kernel)
        return routing.original("convolution", x, w, bias, *lists, False, [0, 0], x.shape[1])

    monkeypatch.setattr(quick_depthwise, "_on_cuda", lambda x: True)
    monkeypatch.setattr(quick_depthwise, "_convolve", library)
    with torch.inference_mode():
        pixel, w = torch.randn(2, 6, 1, 1).to(memory_format=form), torch.randn(6, 1, 1, 1).to(memory_format=form)
        y = quick_depthwise.quick_depthwise(pixel, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 6)
        # As PyTorch answers on CUDA; on a CPU what it answers depends on the library that it takes.
        assert y.stride() == ((6, 1, 6, 6) if last else (6, 1, 1, 1))
        right(y, routing.original("convolution", pixel, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 6))
        for width, model in ((17, net), (18, converted)):
            x = torch.randn(2, 3, 13, width).to(memory_format=form)
            with ct.enable(min_flops=1e15):
                expected = net(x)  # PyTorch's
            asked.clear()
            got = model(x)
            right(got, expected)
            assert got.stride() == expected.stride()
            assert asked == [[3, 3], [2, 2]]
            until(lambda model=model, x=x: moved(lambda: model(x))["compiling"] == 0)
            asked.clear()
            right(model(x), expected)
            assert not asked


def test_policy_full_waits(aside):
    x = torch.randn(1, 3, 9, 9)
    made = layer(6)
    made(x)
    assert ct.counters()["compiling"] == 1
    with policy(tier="full"):
        made(x)
        layer(8)(x)
    assert ct.counters()["ours"] == 2
    assert ct.counters()["compiling"] == 1
    made(x)
    assert ct.counters()["ours"] == 3, "what was loaded inside the block holds outside too"


def test_deterministic_mode_waits_so_that_numbers_repeat(aside):
    x, made = torch.randn(1, 3, 9, 10), layer(9)
    torch.use_deterministic_algorithms(True)
    try:
        first = made(x)
        assert ct.counters()["compiling"] == 0
        assert all(torch.equal(made(x), first) for _ in range(3))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_burst_is_planned_within_its_calls(monkeypatch):
    monkeypatch.setattr(tiers, "BURST_S", MINUTES)
    dispatch.forget()
    ct.reset_counters()
    with ct.enable(), policy(tier="ready"):
        layer(4)(torch.randn(1, 3, 6, 7))
    assert ct.counters()["ours"] == 1
    assert ct.counters()["compiling"] == 0


def test_what_waits_holds_no_tensor(aside):
    x, made = torch.randn(1, 3, 12, 9), layer(10)
    made(x)
    assert tiers.pending()
    of_x, of_w = weakref.ref(x), weakref.ref(made.weight)
    del x, made
    gc.collect()
    assert of_x() is None
    assert of_w() is None


def test_a_child_that_is_killed_gives_its_problem_back(aside, monkeypatch):
    killed = []
    plan = pools._Child.plan

    def killing(self, *arguments):
        if not killed:
            killed.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGKILL)
        return plan(self, *arguments)

    monkeypatch.setattr(pools._Child, "plan", killing)
    x, made = torch.randn(1, 3, 10, 9), layer(11)
    made(x)
    until(lambda: made(x) is not None and ct.counters()["ours"])
    assert killed


def test_the_problems_of_all_threads_of_a_killed_child_are_planned_by_the_next(device, monkeypatch):
    plan, asked, children = pools._Child.plan, [], set()

    def killing(self, *arguments):
        children.add(self.pid)
        asked.append(arguments[0])
        if len(asked) == 3:
            self.kill()
        return plan(self, *arguments)

    monkeypatch.setattr(pools._Child, "plan", killing)
    pool = pools.PlannerPool(device)
    pool._threads, pool._max_children = 3, 1
    problems = [ConvProblem.parse(f"mb1ic3ih{rows}iw7oc5kh3ph1") for rows in (31, 32, 33, 34)]
    answers = [pool.ask(problem, Policy(solver="im2col"), 1.0) for problem in problems]
    assert [answer.result(120) for answer in answers] == [None] * 4
    assert (len(children), pool.left, pool.finished) == (2, 0, 4)
    pool.close()


def test_children_begin_before_the_context_on_a_machine_that_decided_nothing(device, monkeypatch, tmp_path):
    """Then and only then: with decisions on disk, or a pack, most processes need no child."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    begun = []

    class Waiting:
        def __init__(self, *_):
            begun.append(1)

        def close(self):
            pass

    monkeypatch.setattr(pools, "_Child", Waiting)
    monkeypatch.setattr(pools, "IDLE_S", 0.0)
    monkeypatch.setattr(pools, "_pools", {})
    monkeypatch.setattr(stream_tensors, "number_of", lambda each: 7 if each == device else None)
    stream_tensors.begin_children.cache_clear()
    stream_tensors._of_cuda.cache_clear()
    children = pools.pool_of(device)._max_children
    stream_tensors.begin_children(7)
    until(lambda: len(begun) == children and not pools.pool_of(device)._children)
    stream_tensors.begin_children(7)
    DECISIONS.put("0" * 40, {"solver": "im2col"}, "a problem")
    stream_tensors.begin_children.cache_clear()
    stream_tensors.begin_children(7)
    stream_tensors.begin_children(8)
    assert len(begun) == children
    stream_tensors.begin_children.cache_clear()
    stream_tensors._of_cuda.cache_clear()


def test_a_call_does_not_wait_for_the_context_of_its_device(device, monkeypatch):
    """PyTorch's kernels compute meanwhile, and the problem is planned by a child; a capture waits for it."""
    creating, created = threading.Event(), threading.Event()

    class Pool:
        def ask(self, *_):
            answer = Future()
            answer.set_result(None)
            return answer

        lent = contextlib.nullcontext

    def context(_):
        creating.set()
        assert created.wait(60)

    Pool.device = device
    monkeypatch.setattr(tiers, "_contexts", {})
    monkeypatch.setattr(tiers, "pool_of", lambda _: Pool())
    monkeypatch.setattr(tiers.runtime, "has_context", lambda _: False)
    monkeypatch.setattr(tiers.runtime, "context", context)
    monkeypatch.setattr(tiers.dispatch, "planned", lambda *_: False)
    problem, built = ConvProblem.parse("mb1ic3ih9iw9oc5kh3"), []
    build = functools.partial(built.append, "call")
    pending = tiers.first(device, problem, Policy(tier="ready"), build, TORCH, on_cuda=True)
    assert creating.wait(60)
    assert isinstance(pending, tiers.Pending)
    assert (pending.resolved(), pending._again(""), built) == (None, True, [])
    created.set()
    tiers._contexts[device].join(60)
    assert not pending._again("")
    pending.resolved()
    assert built == ["call"]
    tiers._pending.pop(pending.key, None)


def test_without_children_calls_plan_by_themselves(aside, monkeypatch):
    def none(*_):
        raise OSError("no more processes")

    monkeypatch.setattr(pools, "_Child", none)
    monkeypatch.setattr(pools, "_pools", {})
    x, made = torch.randn(1, 3, 10, 11), layer(12)
    made(x)
    until(lambda: made(x) is not None and ct.counters()["ours"])
    assert ct.counters()["left"] == 0


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(aside, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "/proc/none")
    monkeypatch.setattr(pools, "_pools", {})
    x, made = torch.randn(1, 3, 8, 11), layer(13)
    made(x)
    until(lambda: made(x) is not None and ct.counters()["ours"])


def test_a_choice_that_was_forgotten_is_made_anew(aside):
    x, made = torch.randn(1, 3, 7, 11), layer(14)
    made(x)
    dispatch.forget()
    until(lambda: made(x) is not None and ct.counters()["ours"])


@pytest.mark.parametrize("burst", [0.0, MINUTES], ids=["by a child", "within the call"])
def test_a_later_process_asks_no_solver_for_what_was_chosen(aside, monkeypatch, tmp_path, burst):
    """Neither for configurations nor for the math of each: under TF32 more accurate kernels run."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(tiers, "BURST_S", burst)
    x, made, asked, ask = torch.randn(1, 3, 9, 11), layer(19), [], solver_query.ask
    monkeypatch.setattr(solver_query, "ask", lambda solver, what, *more: asked.append(what) or ask(solver, what, *more))
    with ct.enable(math="tf32"):
        for _ in range(2):
            monkeypatch.setattr(pools, "_pools", {})
            dispatch.forget()
            ct.reset_counters()
            asked.clear()
            until(lambda: made(x) is not None and ct.counters()["ours"])
    assert set(asked) <= {"serves", "cost"}, "what a call costs tells whether one thread computes it"


def test_ranks_of_one_training_wait(aside, monkeypatch):
    monkeypatch.setattr(TORCH, "several", lambda: True)
    monkeypatch.setattr(ranks, "agree", lambda *_: None)
    layer(17)(torch.randn(1, 3, 5, 12))
    assert ct.counters()["ours"] == 1
    assert ct.counters()["compiling"] == 0


def test_explain_and_prepare_wait(aside):
    made, x = layer(18), torch.randn(1, 3, 5, 13)
    assert ct.prepare(made, x)["ours"] == 2
    made(x)
    assert ct.counters()["ours"] == 1
    other = layer(19)
    assert ct.explain(other, x).layers[0].solver is not None


class Terminal:
    def __init__(self, attached: bool) -> None:
        self.text, self.attached = "", attached

    def isatty(self) -> bool:
        return self.attached

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("attached", "left"), [(True, 100), (True, 2), (False, 100)])
def test_progress_is_told_on_a_terminal_where_much_lies_ahead(monkeypatch, attached, left):
    shown = Terminal(attached)
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(progress_line, "_UPDATE_S", 0.01)
    with progress_line.ProgressLine("compiling", lambda: (0, left)):
        if attached and left == 100:
            until(lambda: shown.text)
        else:
            time.sleep(0.2)
    if attached and left == 100:
        assert shown.text.startswith("\rconvdispatch: compiling, 0 of 100, about 30 s left")
    else:
        assert shown.text == ""


def test_a_pack_answers_a_model_s_steps_without_children(tmp_path, monkeypatch):
    target, device = tmp_path / "net.cdpack", runtime.default_device()

    def made():
        torch.manual_seed(3)
        return torch.nn.Conv2d(3, 20, 3, padding=1), torch.randn(1, 3, 14, 9)

    dispatch.forget()
    kernels.forget()
    with artifact_store.gathering(device) as gathered, policy(tier="full"), ct.enable():
        runtime.probe.__wrapped__(device)
        conv, x = made()
        conv(x).sum().backward()
    planpack.write(target, gathered)
    dispatch.forget()
    kernels.forget()
    with load_pack(target), frozen():
        assert runtime.probe.__wrapped__(device) is None, "the device is found without the compiler"
    ct.reset_counters()
    monkeypatch.setattr(tiers, "BURST_S", 0.0)
    monkeypatch.setattr(pools, "_Child", None)
    conv, x = made()
    with load_pack(target), ct.enable(), policy(tier="ready"):
        conv(x).sum().backward()
        until(lambda: conv(x) is not None and ct.counters()["ours"])
    assert ct.counters()["left"] == 0


def test_ready_waits_for_what_is_compiled_and_says_for_how_much(aside):
    made, x = layer(9), torch.randn(2, 3, 11, 13)
    with torch.no_grad():
        made(x)
        waiting = tiers.pending()
        assert ct.ready()["kernels"] >= waiting
        assert tiers.pending() == 0
        assert ct.ready() == {"kernels": 0, "forms": 0, "measurements": 0}
        assert moved(lambda: made(x))["compiling"] == 0
