"""Fused models as CUDA graphs: when one is made, what it answers and what is refused, with the host for a GPU.

The stand-in's graph computes what was recorded once more, into the tensors that recording answered.
"""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from native_stand_in import stand_in  # noqa: E402, F401 (torch is asked for first)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_checks import error  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch.calls.framework import tiers  # noqa: E402
from convdispatch.selection import dispatch  # noqa: E402
from convdispatch.torch import counting  # noqa: E402
from convdispatch.torch.dispatch import engine, native  # noqa: E402
from convdispatch.torch.fusion import cuda_graphs, forms  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class HostGraph:
    made: list[HostGraph] = []  # noqa: RUF012
    capturing = False

    def __init__(self, device, pool):
        self.replays, self.run, self.pool_of = 0, None, pool
        HostGraph.made.append(self)

    @staticmethod
    def pool():
        return object()

    @staticmethod
    def under_way():
        return HostGraph.capturing

    def aside(self):
        return contextlib.nullcontext()

    def in_order(self, inputs):
        return contextlib.nullcontext()

    def record(self, run):
        self.run, HostGraph.capturing = run, True
        self.answers = torch.utils._pytree.tree_leaves(answer := run())
        HostGraph.capturing = False
        return answer

    def replay(self):
        self.replays, HostGraph.capturing = self.replays + 1, True
        native.pause(True)  # a graph's kernels are no calls: the native path would count them
        with torch.no_grad(), counting.taped():
            again = torch.utils._pytree.tree_leaves(self.run())
        native.pause(engine.watched())
        HostGraph.capturing = False
        for old, new in zip(self.answers, again, strict=True):
            if isinstance(old, torch.Tensor) and old is not new:
                old.copy_(new)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are made."""
    HostGraph.made, HostGraph.capturing = [], False
    monkeypatch.setattr(cuda_graphs, "_Graph", HostGraph)
    monkeypatch.setattr(cuda_graphs, "DEVICE", "cpu")
    monkeypatch.setattr(cuda_graphs, "LAUNCHES", 2)
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # on a CPU further sizes would be PyTorch's, and no graph's
    return HostGraph.made


def net(after=nn.Identity, **more):
    """A net, and the same fused; ``more`` are methods of its class."""
    torch.manual_seed(0)
    kind = type("Net", (nn.Sequential,), more)
    made = kind(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), after()).eval()
    return made, ct.convert(made, fuse=True)


def picture(seed=0, size=9, batch=2):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def why(fused):
    (only,) = ct.fusion(fused).forms.values()
    return only


def right(fused, plain, turns=5, **kind):
    for turn in range(turns):
        x = picture(turn, **kind)
        assert error(fused(x), plain(x).double()) < 1e-5


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_third_call_is_captured_and_answers_are_the_callers(graphs, mode):
    plain, fused = net()
    with mode():
        answers = [fused(picture(turn)) for turn in range(6)]
        assert [g.replays for g in graphs] == [1 + 4]  # one that is checked
        for turn, got in enumerate(answers):  # none was written over
            assert error(got, plain(picture(turn)).double()) < 1e-5
        assert answers[-1].is_inference() == (mode is torch.inference_mode)
    assert why(fused) == "a CUDA graph, 2 convolutions"


def test_what_is_chosen_anew_is_captured_anew(graphs):
    """Calls layer by layer come between, so that a caller's own capture finds its kernels there."""
    plain, fused = net()
    with torch.no_grad():
        right(fused, plain)
        dispatch.forget()
        before = [g.replays for g in graphs]
        right(fused, plain, 2)
        assert [g.replays for g in graphs] == before
        right(fused, plain, 2)
    assert [g.replays for g in graphs] == [*before, 3]


def test_a_callers_capture_finds_what_a_graph_launches(graphs, stand_in, monkeypatch):  # noqa: F811
    """Replays ask for no kept call, so others take their places meanwhile; in a capture none can be made."""
    plain, fused = net()
    wanted = plain(picture(7)).double()
    with torch.no_grad(), ct.enable(solver="im2col*"):
        for turn in range(4):
            fused(picture(turn))
        assert len(graphs) == 1
        plain(picture(size=5))  # two other convolutions
        engine._calls.drop()
        native.forget()  # as each enable() does
        ct.reset_counters()
        monkeypatch.setattr(HostGraph, "capturing", True)
        stand_in.driver.capturing = True
        stand_in.driver.log.clear()
        assert error(fused(picture(7)), wanted) < 1e-5
        assert ct.counters()["reasons"] == {}
        assert ct.counters()["ours"] == 2
        assert "cuMemAllocFromPoolAsync" not in stand_in.driver.names(), "weights are packed already"


def test_counters_are_those_of_the_calls(graphs):
    _, fused = net()
    with torch.no_grad():
        fused(picture())
        ct.reset_counters()
        fused(picture())
        once = ct.counters()
        fused(picture())
        ct.reset_counters()
        fused(picture())
    assert graphs
    assert once["ours"] == 2
    assert ct.counters() == once


def test_formats_shapes_and_switches_have_graphs_of_their_own(graphs, monkeypatch):
    plain, fused = net()
    with torch.no_grad():
        for count, form in enumerate((torch.contiguous_format, torch.channels_last), 1):
            for turn in range(4):
                x = picture(turn).contiguous(memory_format=form)
                got = fused(x)
                assert error(got, plain(x).double()) < 1e-5
                assert got.is_contiguous(memory_format=form)
            assert len(graphs) == count
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        right(fused, plain)
        assert len(graphs) == 3
        monkeypatch.setattr(forms, "FORMS", 4)
        for batch in (4, 5):
            right(fused, plain, 3, batch=batch)
        assert len(graphs) == 4
        assert len({id(each.pool_of) for each in graphs}) == 1
        gaps = picture(size=18)[..., ::2, ::2]
        assert error(fused(gaps), plain(gaps).double()) < 1e-5


def test_weights_that_change_end_a_graph(graphs):
    plain, fused = net()
    with torch.no_grad():
        right(fused, plain)
        for write in (lambda p: p.mul_(2), lambda p: p.data.mul_(0.5), lambda p: setattr(p, "data", p.data * 3)):
            for each in (plain[3], fused.get_submodule("3")):
                write(each.weight)
            right(fused, plain)
        made = len(graphs)
        right(copy.deepcopy(fused), plain)
        assert len(graphs) == made + 1, "a copy has its own"
        fused.double()
        assert error(fused(picture().double()), plain.double()(picture().double())) < 1e-5


def test_what_a_replay_is_not(graphs, monkeypatch):
    plain, fused = net()
    right(fused, plain)  # gradients are on, and nobody asks for one
    assert len(graphs) == 1
    seen = []

    def unchanged(x=None, turns=3):
        before = [g.replays for g in graphs]
        for _ in range(turns):
            got = fused(picture() if x is None else x)
        assert [g.replays for g in graphs] == before
        return got

    assert unchanged(picture().requires_grad_()).requires_grad
    hook = fused.get_submodule("3").register_forward_hook(lambda *_: seen.append(1))
    unchanged()
    assert len(seen) == 3
    hook.remove()
    with torch.autocast("cpu"):
        unchanged()
    HostGraph.capturing = True
    unchanged()
    HostGraph.capturing = False
    monkeypatch.setenv(cuda_graphs.SWITCH, "0")
    unchanged()
    monkeypatch.delenv(cuda_graphs.SWITCH)
    monkeypatch.setattr(tiers, "pending", lambda: 1)
    unchanged(picture(batch=5), turns=5)
    monkeypatch.undo()


def add_to_input(self, x):
    y = nn.Sequential.forward(self, x)
    x.view(-1).add_(1)
    return y


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x):
        y = x + self.last
        self.last.copy_(x.mean())
        return y


REFUSED = {
    "writes to an input": (nn.Identity, {"forward": add_to_input}),
    "weights that change": (Remembering, {}),
    "a view of an input": (nn.Identity, {"forward": lambda self, x: (nn.Sequential.forward(self, x), x[:, :1])}),
    "draws random numbers": (nn.Identity, {"forward": lambda self, x: F.dropout(nn.Sequential.forward(self, x))}),
    "what aten.nonzero": (nn.Identity, {"forward": lambda self, x: nn.Sequential.forward(self, x).nonzero()}),
    "asks for a value": (nn.Identity, {"forward": lambda self, x: x.sum().item() * nn.Sequential.forward(self, x)}),
    "operations, which": (functools.partial(nn.Flatten), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_replay_would_not_repeat_goes_layer_by_layer(graphs, reason, monkeypatch):
    after, more = REFUSED[reason]
    if reason == "operations, which":
        monkeypatch.setattr(cuda_graphs, "LAUNCHES", 9)
    plain, fused = net(after, **more)
    with torch.no_grad():
        for turn in range(5):
            torch.manual_seed(turn)
            mine = picture(turn)
            got = fused(mine)
            torch.manual_seed(turn)
            theirs = picture(turn)
            wanted = plain(theirs)
            assert torch.equal(mine, theirs)
            for one, other in zip(
                *(each if isinstance(each, tuple) else (each,) for each in (got, wanted)), strict=True
            ):
                assert one.shape == other.shape
                assert error(one.float(), other.double()) < 1e-5
    assert reason in why(fused) if reason != "weights that change" else not ct.fusion(fused).forms


def test_a_small_model_is_asked_no_more(graphs, monkeypatch):
    """Ten parts of a model that is not traced as a whole would each take the host as long as a layer."""
    monkeypatch.setattr(cuda_graphs, "LAUNCHES", 99)
    asked = []
    monkeypatch.setattr(
        cuda_graphs, "kind_of", lambda leaves, real=cuda_graphs.kind_of: asked.append(1) or real(leaves)
    )
    plain, fused = net()
    with torch.no_grad():
        for turn in range(6):
            size = 5 + turn // 4
            assert error(fused(picture(turn, size=size)), plain(picture(turn, size=size)).double()) < 1e-5
    assert len(asked) == cuda_graphs.CALLS
    assert not graphs


def test_answers_in_any_structure_and_inputs_themselves(graphs):
    def forward(self, x):
        y = nn.Sequential.forward(self, x)
        return {"y": [y, y], "x": x, "size": 7, "none": None}

    plain, fused = net(forward=forward)
    with torch.no_grad():
        for turn in range(4):
            x = picture(turn)
            got = fused(x)
            assert got["x"] is x
            assert got["y"][0] is got["y"][1]
            assert (got["size"], got["none"]) == (7, None)
            assert error(got["y"][0], plain(x)["y"][0].double()) < 1e-5
    assert len(graphs) == 1


def test_what_counts_its_calls_is_not_traced():
    """torch.fx would count once."""

    class Counting(nn.Sequential):
        def forward(self, x):
            self.calls.add_(1)
            return super().forward(x) * self.calls

    made = Counting(nn.Conv2d(3, 4, 1), nn.ReLU()).eval()
    made.register_buffer("calls", torch.zeros(()))
    fused = ct.convert(made, fuse=True)
    assert "writes to a part" in ct.fusion(fused).left[""]
    with torch.no_grad():
        for _ in range(2):
            assert error(fused(picture()), made(picture()).double()) < 1e-5


@pytest.mark.parametrize(("name", "more"), [("flash", ()), ("efficient", (None, False)), ("cudnn", (None, False))])
def test_attention_without_dropout_draws_nothing(name, more):
    attention = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default
    with FakeTensorMode():
        x = torch.empty(2, 4, 32, 64, device="cuda", dtype=torch.float16)
        with cuda_graphs._Looking(x.device, set()) as looking:
            attention(x, x, x, *more)
            attention(x, x, x, *more, 0.0)
            assert looking.operators == 2
            with pytest.raises(cuda_graphs.Uncapturable, match="draws random numbers"):
                looking.refuse_drawn(attention(x, x, x, *more, 0.5))


def test_a_replay_that_answers_otherwise_is_refused(graphs, monkeypatch):
    plain, fused = net()
    monkeypatch.setattr(HostGraph, "replay", lambda self: self.answers[0].add_(1))
    with torch.no_grad():
        right(fused, plain)
    assert why(fused) == "a replay answers other numbers than a call"


def test_what_is_recorded_is_captured_with_its_arguments(graphs):
    class Net(nn.Sequential):
        def forward(self, x, *more, step=1):
            y = super().forward(x) * step
            if x.shape[2] % 2 == 0:
                self.last = step
            return y + len(more)

    torch.manual_seed(0)
    plain = Net(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    fused = ct.convert(plain, fuse=True)
    with torch.no_grad():
        for turn in range(5):
            for more, step in (((), 1), ((None,), 1), ((), 2), ((), 3), ((), 4 + turn)):
                got = fused(picture(turn), *more, step=step)
                assert error(got, plain(picture(turn), *more, step=step).double()) < 1e-5
        assert [g.replays for g in graphs] == [4, 4, 4]
        right(fused, plain, 6, size=8)
        assert len(graphs) == 4, "the attribute is what it was from the second call on"
        assert fused.last == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_on_a_gpu(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "LAUNCHES", 2)
    plain, fused = net()
    plain, fused = plain.cuda(), fused.cuda()
    side = torch.cuda.Stream()
    with torch.no_grad():
        for turn in range(30):
            x = picture(turn, size=33).cuda()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side if turn % 2 else torch.cuda.current_stream()):
                got = fused(x)
            torch.cuda.synchronize()
            assert error(got, plain(x).double()) < 1e-4
            tiers.drain()
        assert "a CUDA graph" in why(fused)
        _, syncing = net(forward=lambda self, x: x.sum().item() * nn.Sequential.forward(self, x))
        syncing = syncing.cuda()
        for _ in range(5):
            syncing(picture().cuda())
        torch.cuda.empty_cache()
