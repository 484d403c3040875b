"""From a compiled model's making to its end: lazy and parametrized layers, training between calls, copies, files,
forks; and what a model that is gone leaves behind: nothing."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import os
import pickle
import resource
import tracemalloc
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 (torch is asked for first)
from torch_checks import error  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch.api.errors import InvalidArgument  # noqa: E402
from convdispatch.torch import dynamo_frames  # noqa: E402
from convdispatch.torch.graph import conversion, inductor  # noqa: E402
from convdispatch.torch.graph.forms import Form, GraphForms  # noqa: E402

nn = torch.nn
DOORS = {
    "convert": lambda model: ct.convert(model, fuse=True),
    "backend": lambda model: torch.compile(model, backend="convdispatch"),
}
MB = 1 << 20


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Conv2d(width, 4, 1)

    def forward(self, x):
        return self.two(self.norm(self.one(x)).relu())


class Breaking(Net):
    def forward(self, x):
        y = self.one(x)
        torch._dynamo.graph_break()
        return self.two(self.norm(y).relu())


def sequence(width=8):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 4, 1))


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    monkeypatch.setattr(inductor, "available", lambda device: False)
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture(params=DOORS)
def door(request):
    return DOORS[request.param]


def picture(size=8):
    return torch.randn(1, 3, size, size)


def original(compiled):
    return getattr(compiled, "_orig_mod", compiled)


def same(one, other, size=8):
    x = picture(size)
    with torch.no_grad():
        assert error(one(x), other(x)) < 1e-5


# --- what becomes of a model between its calls ----------------------------------------------------------------------


def test_lazy_layers(door):
    """They take their sizes at the first call; a converted model's weights do not learn, so it must have them."""
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyConv2d(4, 1)).eval()
    if door is DOORS["backend"]:
        compiled = door(model)
        with torch.no_grad():
            compiled(picture())
    else:
        with torch.no_grad():
            model(picture())
        compiled = door(model)
    assert type(model[0]) is nn.Conv2d
    for size in (8, 9):
        same(compiled, copy.deepcopy(model), size)


def test_lazy_layers_without_sizes_are_named():
    with pytest.raises(InvalidArgument, match="call it once"):
        ct.convert(nn.Sequential(nn.LazyConv2d(8, 3)).eval(), fuse=True)


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_layers(door, norm):
    model = Net().eval()
    getattr(nn.utils.parametrizations, norm)(model.one)
    compiled = door(copy.deepcopy(model))
    same(compiled, model)
    for each in (compiled, model):
        with torch.no_grad():
            part = original(each).one.parametrizations.weight
            (part.original1 if norm == "weight_norm" else part.original).mul_(torch.linspace(1, 2, 3).view(1, 3, 1, 1))
    for _ in range(2):
        same(compiled, model)


def test_steps_between_calls(door):
    """Of an optimizer, and of a moving average that takes the model's place."""
    model = Net().eval()
    compiled = door(copy.deepcopy(model))
    for each in (compiled, model):
        each.requires_grad_(True)
    mean = [torch.optim.swa_utils.AveragedModel(original(each)) for each in (compiled, model)]
    steps = [torch.optim.Adam(each.parameters(), lr=1e-2, eps=1e-2) for each in (compiled, model)]
    same(compiled, model)
    for _ in range(3):
        x = picture()
        for each, step, average in zip((compiled, model), steps, mean, strict=True):
            each(x).square().sum().backward()
            step.step()
            step.zero_grad()
            average.update_parameters(original(each))
        x = picture()
        with torch.no_grad():
            assert error(compiled(x), model(x)) < 1e-4
            assert error(mean[0](x), mean[1](x)) < 1e-4
    for each, average in zip((compiled, model), mean, strict=True):
        original(each).load_state_dict(average.module.state_dict())
    with torch.no_grad():
        assert error(compiled(x), model(x)) < 1e-4


def test_compiled_twice(door):
    model = Net().eval()
    first = door(copy.deepcopy(model))
    same(first, model)
    second = door(original(first))
    for _ in range(2):
        same(second, model)
        same(first, model)
    with torch.no_grad():
        original(second).two.weight.mul_(2)
        model.two.weight.mul_(2)
    same(second, model)


def test_copies_and_files_after_a_call():
    model = Net().eval()
    compiled = ct.convert(model, fuse=True)
    same(compiled, model)
    copies = [copy.deepcopy(compiled), copy.copy(compiled), pickle.loads(pickle.dumps(compiled))]
    for each in copies:
        same(each, model)
    with torch.no_grad():
        copies[0].two.weight.mul_(2)
        compiled.two.bias.add_(1)
    same(copies[2], model)
    x = picture()
    with torch.no_grad():
        assert error(copies[0](x), model(x)) > 0.1
        assert error(copies[1](x), compiled(x)) < 1e-6  # a shallow copy has the same parameters
        assert error(compiled(x), model(x)) > 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("called", [True, False])
def test_a_forked_child_calls_what_its_parent_converted(door, called):
    model = Net().eval()
    compiled, x = door(copy.deepcopy(model)), picture()
    with torch.no_grad():
        wanted = model(x)
        if called:
            compiled(x)
    child = os.fork()
    if not child:  # nothing of the test runs on in the child
        right = False
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                right = error(compiled(x), wanted) < 1e-5
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    same(compiled, model)


class Nested(nn.Module):
    """Parts that are compiled by themselves, for Dynamo leaves a loop with a break in it to Python."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Net(), sequence()])

    def forward(self, x):
        results = []
        for part in self.parts:
            results.append(part(x) * float(x.sum()))
        return sum(results)


def test_dynamo_does_not_look_on_where_a_parts_state_is_made(monkeypatch):
    """It would compile the standard library's code below, and fail where that changes what Dynamo reads."""
    compiled, seen, finalize = ct.convert(Nested().eval(), fuse=True), [], weakref.finalize

    def watched(of, *given):
        if isinstance(of, nn.Module):
            seen.append(dynamo_frames.looks_on())
        return finalize(of, *given)

    monkeypatch.setattr(conversion.weakref, "finalize", watched)
    with torch.no_grad():
        compiled(picture())
    assert seen == [None] * 3


# --- what a model that is gone leaves -------------------------------------------------------------------------------

KINDS = {"net": Net, "sequence": sequence, "breaks": Breaking, "layer": lambda width=8: nn.Conv2d(3, width, 3)}


def left():
    """Forms, graphs with weights and modes of fake tensors that are alive."""
    gc.collect()
    found = [0, 0, 0]
    for each in gc.get_objects():
        kind = type(each)
        found[0] += kind is Form
        found[1] += kind is GraphForms and bool(each._weight_sets.sets)
        found[2] += kind is FakeTensorMode
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_gone_leaves_nothing(door, kind):
    before = left()
    model = KINDS[kind]().eval()
    compiled = door(model)
    with torch.no_grad():
        for size in (8, 9, 10):  # the second makes graphs with symbols for sizes
            compiled(picture(size))
    assert left()[0] > before[0]
    held = [weakref.ref(compiled), *map(weakref.ref, compiled.parameters()), *map(weakref.ref, model.parameters())]
    del compiled, model
    gc.collect()
    assert [each() for each in held] == [None] * len(held)
    assert all(now <= then for now, then in zip(left(), before, strict=True))  # what earlier tests left may go, too


def test_models_of_which_parts_live_on_keep_their_forms(door):
    model = sequence().eval()
    compiled = door(model)
    with torch.no_grad():
        compiled(picture())
    before = left()
    assert left() == before
    assert before[0] > 0
    del model
    assert left() == before


def test_30_models_in_turn(door):
    """Each has 4 MB of weights, which a form packs once more.

    What stays of Python's objects is PyTorch's own: Dynamo keeps 0.23 MB a model (texts of guards, frames of traces,
    metrics), as much for ``torch.compile`` with AOTAutograd and a back end that only calls the graph.
    """

    def turn():
        compiled = door(sequence(width=1 << 15).eval())
        with torch.no_grad():
            compiled(picture(3))
        del compiled
        gc.collect()

    def memory():
        """Resident bytes, without holes of malloc's heap: glibc keeps 4 MB a model in some, and returns them here."""
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    for _ in range(8):  # what is imported and compiled in the background comes with the first
        turn()
    before = memory()
    for _ in range(30):
        turn()
    assert memory() - before < 40 * MB
    tracemalloc.start()
    try:
        for _ in range(10):
            turn()
        traced = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert traced < 8 * MB, "Python's objects; tensors are not among them"
