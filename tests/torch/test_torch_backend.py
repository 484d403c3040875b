"""The back end for torch.compile: its engines, graphs that learn, and what it refuses."""

import copy
import inspect
import itertools
import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch_checks import error, in_double, with_statistics

import convdispatch.torch as ct
from convdispatch import InvalidArgument
from convdispatch.inference import form_benchmark
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.graph import engine_choice, inductor

nn = torch.nn


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x + self.norm(self.conv(x)))


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, stride=2), Block(8), nn.Conv2d(8, 6, 1), nn.SiLU(), Block(6)
    return with_statistics(nn.Sequential(*layers)).train()


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    ct.reset_counters()


@pytest.mark.parametrize("engine", ["form", "operators"])
def test_each_engine_computes_the_model(engine):
    net, x = _net().eval(), torch.randn(2, 3, 21, 17)
    backend = Backend(options={"engine": engine})
    compiled = torch.compile(net, backend=backend)
    with torch.no_grad():
        assert error(compiled(x), in_double(net, x)) < 2e-6
    (words,) = backend.graphs[0].descriptions().values()
    assert ("commands" in words) == (engine == "form")
    assert sum(ct.counters()["solvers"].values()) >= 4  # all four convolutions are ours


def test_operators_fold_norms_and_take_in_what_follows():
    net, x = _net().eval(), torch.randn(1, 3, 12, 12)
    seen = []
    plain = inductor.with_our_operators

    def looked(*given):
        made = plain(*given)
        seen.extend(str(node.target) for node in made.graph.nodes if node.op == "call_function")
        return made

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(inductor, "with_our_operators", looked)
        torch.compile(net, backend=Backend(options={"engine": "operators"}))(x)
    assert seen == ["convdispatch.fused_convolution.below_autograd"] * 4  # sums, activations and norms are in them


@pytest.mark.parametrize("has_compiler", [False, True])
def test_gradients_are_the_model_s_and_convolutions_ours(has_compiler, monkeypatch):
    if has_compiler and not inductor.available("cpu"):
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(inductor, "available", lambda device: has_compiler)
    net, x, backend = _net(), torch.randn(2, 3, 15, 15), Backend()
    exact = copy.deepcopy(net).double()
    torch.compile(net, backend=backend)(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    for mine, own in zip(net.parameters(), exact.parameters(), strict=True):
        assert error(mine.grad, own.grad) < 1e-5
    for mine, own in zip(net.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine.double(), own.double(), rtol=1e-5, atol=1e-6)
    counts = ct.counters()
    assert (counts["convolution"], counts["convolution_backward"], counts["left"]) == (4, 4, 0)
    assert not has_compiler or "with gradients" in next(iter(backend.graphs[0].descriptions().values()))


def test_kernels_are_compiled_beside_inductor_s_code(monkeypatch):
    """Planning begins before inductor lowers a graph, and does not hold that up."""
    if not inductor.available("cpu"):
        pytest.skip("no C++ compiler")
    from torch._inductor.graph import GraphLowering

    lowering, beside = threading.Event(), {}
    prepare, lower = inductor._prepare, GraphLowering.run

    def preparing(tasks, *tuned):
        parts = [task.args[0] for task in tasks]
        beside[" ".join(parts)] = lowering.wait(120)
        prepare(tasks, *tuned)

    monkeypatch.setattr(inductor, "_prepare", preparing)
    monkeypatch.setattr(GraphLowering, "run", lambda *arguments: (lowering.set(), lower(*arguments))[1])
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)), torch.randn(1, 3, 9, 8)
    at_once, anew = torch._functorch.config.patch, torch._inductor.config.patch
    with at_once(force_non_lazy_backward_lowering=True), anew(force_disable_caches=True):
        torch.compile(model, backend=Backend())(x)
    assert beside == {"forward forward": True, "data weights weights": True}


def test_a_graph_waits_for_its_kernels(monkeypatch):
    goes_on = threading.Event()

    def prepare(tasks):
        assert goes_on.wait(120)
        raise MemoryError(f"{len(tasks)} problems")

    monkeypatch.setattr(inductor, "_prepare", prepare)
    x, w, geometry = torch.ones(1, 3, 9, 8), torch.ones(4, 3, 3, 3), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    graph = make_fx(lambda x, w: torch.ops.convdispatch.convolution(x, w, None, *geometry), tracing_mode="fake")(x, w)

    def compile_graph():
        with inductor.kernels_beside():
            inductor.prepare_kernels(graph.graph, None, constant=False)
            goes_on.set()

    with pytest.raises(MemoryError, match="1 problems"):
        compile_graph()


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only in ``engine`` of ``test_a_race_``."""
    seconds = [0.0]
    monkeypatch.setattr(form_benchmark, "SAMPLE_S", 0.02)  # at other times of tests it is 0
    monkeypatch.setattr(engine_choice.time, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize(
    ("after_the_other", "in_a_row", "best"), [(0.01, 0.01, 1), (0.001, 0.001, 0), (0.01, 0.001, 0)]
)
def test_a_race_keeps_the_engine_that_is_faster_in_a_row(clock, after_the_other, in_a_row, best):
    """The other engine takes 3 ms. Samples are taken in turns, each over 20 ms of calls."""
    calls = []

    def engine(name, first, others):
        def run(inputs):
            clock[0] += others if calls[-1:] == [name] else first
            calls.append(name)

        return run

    faster = inspect.unwrap(engine_choice.faster)  # what stands there in tests lets the first win
    engines = [engine("one", after_the_other, in_a_row), engine("other", 0.003, 0.003)]
    assert faster(engines, []).best == best
    turns = [name for name, _ in itertools.groupby(calls)]
    assert turns == ["one", "other"] * (len(turns) // 2)
    assert len(turns) == 2 + 4 * engine_choice.RUNS


def test_an_unknown_engine_is_refused_in_words():
    with pytest.raises(InvalidArgument, match="form, inductor, operators, got 'fastest'"):
        Backend(options={"engine": "fastest"})


class Tabled(nn.Module):
    """A convolution whose result gets a bias from a table, by an index; and one that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.table = nn.Parameter(torch.randn(9, 4))
        self.register_buffer("index", torch.randint(0, 9, (8, 8)))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.conv(x) + self.table[self.index.view(-1)].view(8, 8, 4).permute(2, 0, 1) + self.calls


def names_of_packed(backend) -> list[str]:
    """The names of the inputs of a back end's only graph that a form packs."""
    (graph,) = backend.graphs
    return [graph._graph.graph.find_nodes(op="placeholder")[index].name for index in graph._packed]


def test_a_table_is_looked_up_once_and_writes_to_it_are_seen():
    net, x = Tabled().eval(), torch.randn(1, 3, 8, 8)
    backend = Backend(options={"engine": "form"})
    compiled = torch.compile(net, backend=backend)

    def check() -> None:
        expected = in_double(net, x)
        assert error(compiled(x), expected) < 2e-6

    with torch.no_grad():
        check()
        packed = names_of_packed(backend)
        assert len(packed) == 4  # weight, bias, table, index
        assert not any("calls" in name for name in packed)
        (graph,) = backend.graphs
        assert "commands" in next(iter(graph.descriptions().values()))
        for write in (
            lambda: net.table.mul_(2),
            lambda: net.index.copy_(net.index.flip(0)),
            lambda: net.table.data.add_(1),
            lambda: net.load_state_dict({**net.state_dict(), "table": torch.randn(9, 4)}),
        ):
            write()
            for _ in range(3):
                check()
        assert net.calls == 13


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_both_formulas_of_gelu_are_a_convolutions_own(approximate):
    model = nn.Sequential(nn.Conv2d(16, 32, 1), nn.GELU(approximate)).eval()
    plain, x = nn.Sequential(model[0], nn.ReLU()).eval(), torch.randn(1, 16, 8, 8)
    commands = []
    for each in (model, plain):
        backend = Backend(None, {"engine": "form"})
        with torch.inference_mode():
            torch.testing.assert_close(torch.compile(each, backend=backend)(x), each(x), rtol=1e-5, atol=1e-5)
        (description,) = backend.graphs[0].descriptions().values()
        commands.append(description.split(", ")[1])
    assert commands[0] == commands[1]


class LayerScale(nn.Module):
    """A block whose branch is scaled by a parameter of each channel, behind a layer that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Dropout()
        self.scale = nn.Parameter(torch.linspace(-1, 2, 8))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.drop(self.norm(self.conv(x))) * self.scale.view(1, -1, 1, 1) * self.calls


def test_a_layer_scale_is_folded_and_writes_to_it_are_seen():
    net, x = LayerScale().eval(), torch.randn(1, 8, 5, 5)
    backend = Backend(options={"engine": "form"})
    compiled = torch.compile(net, backend=backend)
    with torch.no_grad():
        for write in (lambda: None, lambda: net.scale.mul_(2), lambda: net.scale.data.add_(1)):
            write()
            for _ in range(3):
                got, net.calls[...] = compiled(x), net.calls - 1
                assert error(got, in_double(net, x)) < 2e-6
                net.calls += 1
        packed = names_of_packed(backend)
        assert len(packed) == 7  # weight, bias, four vectors of the norm, scale
        assert not any("calls" in name for name in packed)
