"""What compiled models are given and what they answer: as the model itself, also where tensors share memory."""

from __future__ import annotations

import copy
import gc
import io
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from threads import together  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_checks import error  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402
from convdispatch.torch.graph import constants, inductor  # noqa: E402
from convdispatch.torch.graph.engine_choice import Race  # noqa: E402
from convdispatch.torch.graph.forms import GraphForms  # noqa: E402

nn, F = torch.nn, torch.nn.functional
SCALES = {6: 2.0}
ARRAY = np.ones(1)


class Net(nn.Module):
    def __init__(self, body=lambda m, y, x: y):
        super().__init__()
        self.one, self.two, self.body = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1), body

    def layers(self, x):
        return self.two(self.one(x).relu())

    def forward(self, *given, **named):
        x = given[0] if given else named["x"]
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, list | tuple) else x
        return self.body(self, self.layers(x), *(given or (x,)), **{k: v for k, v in named.items() if k != "x"})


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def both(body=lambda m, y, x: y):
    model = Net(body).eval().requires_grad_(False)
    return model, ct.convert(model, fuse=True)


def picture(*shape):
    return torch.randn(*(shape or (1, 3, 6, 6)))


def alike(got, wanted):
    got, structure = torch.utils._pytree.tree_flatten(got)
    wanted, own = torch.utils._pytree.tree_flatten(wanted)
    assert structure == own
    for one, other in zip(got, wanted, strict=True):
        assert type(one) is type(other)
        if isinstance(other, torch.Tensor):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert torch.equal(one, other) if not other.is_floating_point() else error(one, other) < 1e-5


BRANCHES = {
    "type in a set": lambda x: 2.0 if x.dtype in {torch.float32} else 3.0,
    "the type's name": lambda x: 2.0 if "float32" in str(x.dtype) else 3.0,
    "a table of sizes": lambda x: SCALES.get(x.shape[-1], 3.0),
    "a set of sizes": lambda x: 2.0 if x.shape[-1] in {6, 16} else 3.0,
    "square": lambda x: 2.0 if len({x.shape[-2], x.shape[-1]}) == 1 else 3.0,
    "a size in words": lambda x: 2.0 if f"{x.shape[-1]}" == "6" else 3.0,
    "the class": lambda x: 2.0 if type(x) is torch.Tensor else 3.0,
    "gradients": lambda x: 2.0 if x.requires_grad else 3.0,
    "contiguity": lambda x: 2.0 if x.is_contiguous() else 3.0,
    "strides": lambda x: float(x.stride(0) % 7),
    "the batch": lambda x: float(x.shape[0]),
    "a value": lambda x: 2.0 if x.sum() > 0 else 3.0,
    "a mode": lambda x: 2.0 if torch.is_grad_enabled() else 3.0,
    "inference": lambda x: 2.0 if torch.is_inference_mode_enabled() else 3.0,
    "autocast": lambda x: 2.0 if torch.is_autocast_enabled("cpu") else 3.0,
    "elements": lambda x: float(x.numel() % 5 + 1),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_taken_at_each_call(name):
    model, fused = both(lambda m, y, x: y * BRANCHES[name](x))
    wide = picture(1, 3, 6, 8)[..., 1:-1]
    for x in (picture(), picture(2, 3, 6, 6), picture(1, 3, 6, 7), wide, picture(), -picture().abs(), picture()):
        with torch.no_grad():
            alike(fused(x), model(x))
    with torch.inference_mode():
        alike(fused(x), model(x))
    grown = picture().requires_grad_()
    alike(fused(grown).detach(), model(grown).detach())


GIVEN = {
    "two": (lambda m, y, x, z: y - 2 * m.layers(z), lambda x, z: ((x, z), {})),
    "a list": (lambda m, y, both: y - 2 * m.layers(both[1]), lambda x, z: (([x, z],), {})),
    "a dictionary": (lambda m, y, both: y - 2 * m.layers(both["z"]), lambda x, z: (({"x": x, "z": z},), {})),
    "by name": (lambda m, y, x, z=None: y if z is None else y - 2 * m.layers(z), lambda x, z: ((), {"x": x, "z": z})),
}


@pytest.mark.parametrize("name", GIVEN)
def test_one_tensor_given_twice_then_two(name):
    body, given = GIVEN[name]
    model, fused = both(body)
    x, z = picture(), picture()
    shared = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        for pair in (
            (x, x),
            (x, z),
            (z, z),
            (shared[:1], shared[1:]),
            (shared[:1], shared[:1]),
            (x, x.expand(1, 3, 6, 6)),
        ):
            for args, named in [given(*pair)] * 2:
                alike(fused(*args, **named), model(*args, **named))


ANSWERS = {
    "a part of the input": lambda m, y, x: (y, x[:, 1:]),
    "the input": lambda m, y, x: (y, x),
    "the input turned": lambda m, y, x: {"y": y, "x": x.transpose(2, 3)},
    "two parts of one": lambda m, y, x: y.chunk(3, 1),
    "one twice": lambda m, y, x: [y, y],
    "a part and the whole": lambda m, y, x: (y, y[:, :1]),
    "integers": lambda m, y, x: (y, y.argmax(1), y > 0, y.shape[0], None, "word"),
    "a scalar": lambda m, y, x: y.sum(),
    "channels last": lambda m, y, x: y.contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_share_memory_as_the_models_do(name):
    model, fused = both(ANSWERS[name])
    for _ in range(2):
        mine, theirs = (x := picture()), x.clone()
        with torch.no_grad():
            got, wanted = fused(mine), model(theirs)
            alike(got, wanted)
            ours, own = (
                [each for each in torch.utils._pytree.tree_leaves(y) if isinstance(each, torch.Tensor)]
                for y in (got, wanted)
            )
            assert [each.stride() for each in ours] == [each.stride() for each in own]
            assert [each is ours[0] for each in ours] == [each is own[0] for each in own]
            for y in (ours, own):
                y[0].add_(1)
                y[-1].add_(1) if y[-1].dtype != torch.bool else None
            alike([mine, *ours], [theirs, *own])


def writes_input(m, y, x):
    x.mul_(2)
    return y + x


def writes_part(m, y, x):
    x[:, :1].add_(1)
    return y + x


def writes_list(m, y, given):
    given.append(y)
    return y


@pytest.mark.parametrize("body", [writes_input, writes_part])
def test_writes_to_inputs_are_the_callers(body):
    model, fused = both(body)
    for _ in range(3):
        mine, theirs = (x := picture()), x.clone()
        with torch.no_grad():
            alike((fused(mine), mine), (model(theirs), theirs))


def test_lists_that_a_call_writes():
    model, fused = both(writes_list)
    with torch.no_grad():
        for _ in range(3):
            mine, theirs = [x := picture()], [x]
            alike((fused(mine), mine), (model(theirs), theirs))


def test_inputs_of_all_kinds():
    model, fused = both(lambda m, y, x, t=None: y if t is None else y * t)
    odd = [
        picture(1, 3, 12, 12)[..., ::2, ::2],
        torch.randn(1, 1, 6, 6).expand(1, 3, 6, 6),
        picture().contiguous(memory_format=torch.channels_last),
        picture(1, 6, 6, 3).permute(0, 3, 1, 2),
        torch.randn(0, 3, 6, 6),
        picture(3, 6, 6),
    ]
    others = [None, 2, 2.0, torch.tensor(2), torch.tensor(2.0, dtype=torch.float64), torch.ones(6, dtype=torch.bool)]
    with torch.no_grad():
        for x in odd * 2:
            alike(fused(x), model(x))
        for t in others * 2:
            alike(fused(odd[0], t), model(odd[0], t))


def compiled(model):
    return torch.compile(model, backend="convdispatch")


def graphs():
    return [each for each in gc.get_objects() if type(each) is GraphForms and each._weight_sets.sets]


@pytest.mark.parametrize("count", [2, 4, 6])
def test_models_of_one_class_keep_their_weights(count, monkeypatch):
    """Dynamo may use one graph for all; forms of the last sets of weights are kept, and freed with their models."""
    monkeypatch.setattr(constants, "MAX_SETS", 4)
    before = set(map(id, graphs()))
    models = [Net().eval() for _ in range(count)]
    ours, x = [compiled(model) for model in models], picture()
    with torch.no_grad():
        for _ in range(4):
            for model, each in zip(models, ours, strict=True):
                alike(each(x), model(x))
    sets = [len(graph._weight_sets.sets) for graph in graphs() if id(graph) not in before]
    assert max(sets) == min(count, 4)
    with torch.no_grad():
        models[0].one.weight.mul_(2)
        alike(ours[0](x), models[0](x))


class Block(nn.Sequential):
    """A frame of its own for Dynamo, which compiles none of PyTorch's modules alone."""

    def forward(self, x):
        return x + super().forward(x)


class Blocks(nn.Module):
    """Blocks between graph breaks, for which Dynamo compiles one graph."""

    def __init__(self, block, count):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(count))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x


BLOCKS = {
    "form": lambda: Block(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1)),
    "inductor": lambda: Block(nn.Conv2d(16, 16, 1), nn.Linear(12, 12)),
}


@pytest.mark.parametrize("engine", BLOCKS)
def test_blocks_of_a_net_that_share_a_graph_are_each_built_once(engine, monkeypatch):
    """The weights of seven blocks take turns: no call packs, times or compiles again what an earlier one did, and
    inductor compiles the graph twice, with the first block's weights and for those of all others."""
    monkeypatch.setattr(Race, "winner", property(lambda race: engine, lambda race, found: None), raising=False)
    builds, compiled_graphs = [], []
    build, aside = GraphForms._build, inductor._compiled_aside
    monkeypatch.setattr(GraphForms, "_build", lambda *given: builds.append(1) or build(*given))
    monkeypatch.setattr(inductor, "_compiled_aside", lambda *given: compiled_graphs.append(1) or aside(*given))
    model, x = Blocks(BLOCKS[engine], 7).eval().requires_grad_(False), torch.randn(1, 16, 12, 12)
    ours = compiled(model)
    with torch.no_grad():
        for calls in range(5):
            alike(ours(x), model(x))
            assert len(builds) == (1 if calls == 0 else 7)
        assert len(compiled_graphs) == (2 if engine == "inductor" else 0)
        model.blocks[3][0].weight.mul_(2)
        for _ in range(3):
            alike(ours(x), model(x))


def _tie(m):
    m.two.weight = nn.Parameter(m.two.weight * 2, requires_grad=False)


CHANGES = {
    "replaced": _tie,
    "in place": lambda m: m.two.weight.mul_(2),
    "data": lambda m: m.two.weight.data.mul_(2),
    "new data": lambda m: setattr(m.two.weight, "data", m.two.weight.data * 2),
    "no bias": lambda m: setattr(m.two, "bias", None),
    "loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "double": lambda m: m.double(),
    "swapped": lambda m: torch.utils.swap_tensors(m.two.weight, nn.Parameter(m.two.weight * 2, requires_grad=False)),
    "learning": lambda m: m.requires_grad_(True),
    "training": lambda m: m.train(),
    "another layer": lambda m: setattr(m, "two", nn.Conv2d(4, 3, 3).requires_grad_(False)),
    "pruned": lambda m: nn.utils.prune.l1_unstructured(m.two, "weight", 0.5),
    "parametrized": lambda m: nn.utils.parametrizations.weight_norm(m.two),
    "a stride": lambda m: setattr(m.one, "stride", (2, 2)),
    "a hook": lambda m: m.two.register_forward_hook(lambda part, given, y: y * 2) and None,
    "a hook before": lambda m: m.two.register_forward_pre_hook(lambda part, given: (given[0] * 2,)) and None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_model_after_a_call(name):
    import torch.nn.utils.prune

    _, fused = both()
    x = picture()
    with torch.no_grad():
        fused(x)
        fused(x)
        torch.manual_seed(1)
        CHANGES[name](fused)
        plain = Net().eval()
        plain.one, plain.two = fused.one, fused.two
        x = x.to(fused.one.weight.dtype)
        for _ in range(3):
            alike(fused(x), plain(x))


def test_parameters_can_be_swapped_after_a_call():
    _, fused = both()
    with torch.no_grad():
        fused(picture())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        fused.double().float()
        fused.load_state_dict({name: value * 2 for name, value in fused.state_dict().items()})
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("call", ["empty batch", "gradients", "another thread", "a global array"])
def test_parameters_can_be_swapped_after_a_capture_that_made_no_form(call):
    """With a global array of NumPy's, Dynamo gives a capture up and begins again."""
    _, fused = both(lambda m, y, x: y * float(ARRAY[0]) if call == "a global array" else y)
    if call == "gradients":
        fused(picture().requires_grad_())
    elif call == "another thread":
        thread = threading.Thread(target=lambda: fused(picture().requires_grad_()))
        thread.start()
        thread.join()
    else:
        with torch.no_grad():
            fused(picture()[:0])
    for parameter in fused.parameters():
        other = nn.Parameter(parameter.detach() * 2, requires_grad=parameter.requires_grad)
        torch.utils.swap_tensors(parameter, other)


@pytest.mark.parametrize("layer", [nn.Conv2d, nn.ConvTranspose2d])
def test_autocast_holds_where_a_transform_differentiates(layer):
    net, x = layer(3, 4, 3), picture()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = torch.func.jvp(net, (x,), (x.flip(-1),))
        found = torch.func.jvp(ct.convert(copy.deepcopy(net)), (x,), (x.flip(-1),))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype is theirs.dtype is torch.bfloat16
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_an_empty_batch_is_rectified_in_place():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))
    x = picture()[:0].requires_grad_()
    ct.convert(net)(x).sum().backward()
    assert x.grad.shape == x.shape
    y = torch.ops.convdispatch.convolution(x, net[0].weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1).relu_()
    assert y.shape == (0, 4, 4, 4)


@pytest.mark.parametrize("learns", [False, True])
def test_a_second_pass_of_checkpoint_writes_the_running_statistics_as_pytorch_does(monkeypatch, learns):
    monkeypatch.setattr(inductor, "available", lambda device: False)

    def statistics(compiled):
        torch.manual_seed(0)
        net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).requires_grad_(learns)
        x = picture().requires_grad_()
        checkpoint(compiled(net), x, use_reentrant=False).square().sum().backward()
        return list(net.buffers())

    ours = statistics(lambda net: torch.compile(net, backend="convdispatch"))
    for found, wanted in zip(ours, statistics(lambda net: net), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_graph_holds_no_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def modes():
        gc.collect()
        return sum(type(each) is FakeTensorMode for each in gc.get_objects())

    before = modes()
    _, fused = both()
    with torch.no_grad():
        fused(picture())
    assert modes() <= before


def test_copies_files_and_threads():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1)).eval().requires_grad_(False)
    fused, place = ct.convert(model, fuse=True), io.BytesIO()
    with torch.no_grad():
        x = picture()
        alike(fused(x), model(x))
        twin = copy.deepcopy(fused)
        twin[2].weight.mul_(2)
        torch.save(fused, place)
        place.seek(0)
        read = torch.load(place, weights_only=False)
        alike(read(x), model(x))
        alike(fused(x), model(x))
        assert error(twin(x), model(x)) > 0.1
        given = [picture() for _ in range(6)]
        wanted = [model(each) for each in given]

    for got, each in zip(together(torch.no_grad()(fused), given), wanted, strict=True):
        alike(got, each)


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.d = nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)

    def encode(self, x):
        return self.e(x)

    def decode(self, z, size):
        return self.d(z, output_size=size)

    def forward(self, x):
        torch._assert_async(x.amax() < 100)
        return self.decode(self.encode(x), [12, 12])


def test_methods_assertions_and_sizes():
    model = Methods().eval().requires_grad_(False)
    fused, x = ct.convert(model, fuse=True), picture()
    with torch.no_grad():
        for _ in range(2):
            alike(fused(x), model(x))
            alike(fused.encode(x), model.encode(x))
            for size in ([11, 11], [12, 12]):
                alike(fused.decode(fused.encode(x), size), model.decode(model.encode(x), size))
        with pytest.raises(RuntimeError, match="nonzero value"):
            fused(x * 1e6)
        with pytest.raises(RuntimeError, match="nonzero value"):
            fused(x * 1e6)
    with pytest.raises(TypeError, match="NoneType"):
        ct.conv_transpose2d(None, model.d.weight)


def test_a_layer_by_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (nn.Conv2d(3, 8, 3), nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1))):
            fused, x = ct.convert(model.eval(), fuse=True), picture()
            with torch.no_grad():
                alike(fused(x), model(x))
            assert len(ct.fusion(fused).forms) == 1
    for wrong in (None, "word"):
        with pytest.raises(TypeError, match="conv2d"), torch.no_grad():
            ct.convert(nn.Conv2d(3, 8, 3).eval(), fuse=True)(wrong)


def _vjp(f, x):
    return torch.func.vjp(f, x)[0]


_vmap, _VMAPPED, _SEVERAL = torch.func.vmap, torch.ones(3), lambda x: torch.stack([x, 2 * x])
TRANSFORMED = {
    "over pictures": lambda f, x, w: _vmap(lambda v: f(v, w))(_SEVERAL(x)),
    "over weights": lambda f, x, w: _vmap(lambda v: f(x, v))(_SEVERAL(w)),
    "over neither": lambda f, x, w: _vmap(lambda v: v * f(x, w).float())(_VMAPPED),
    "outer": lambda f, x, w: _vmap(lambda v: _vmap(lambda _: f(v, w) * 1)(_VMAPPED))(_SEVERAL(x)),
    "of a gradient": lambda f, x, w: _vmap(lambda v: _vjp(lambda u: f(u, w), v))(_SEVERAL(x)),
    "within a gradient": lambda f, x, w: _vjp(lambda u: _vmap(lambda v: f(v, w))(u), _SEVERAL(x)),
    "of weights, a gradient": lambda f, x, w: _vmap(lambda v: _vjp(lambda u: f(u, v), x))(_SEVERAL(w)),
    "functionalize": lambda f, x, w: torch.func.functionalize(lambda v: f(v, w))(x),
}


@pytest.mark.parametrize("way", TRANSFORMED)
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_autocast_under_vmap_casts_what_pytorch_casts(name, way):
    """On a CPU PyTorch finds vmap's rule before that of autocast, so some results stay float32."""
    x, w = picture().abs(), torch.rand(3, 3, 3, 3)  # without signs, so that no sum cancels its roundings
    ours, theirs = (getattr(module, name) for module in (ct, nn.functional))
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = TRANSFORMED[way](ours, x, w), TRANSFORMED[way](theirs, x, w)
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.ConvTranspose1d, nn.Conv2d])
def test_pytorchs_own_result_behind_an_operator_may_be_written_in_place(layer):
    """Of one axis PyTorch's result is a view of one with two."""
    net, x = layer(3, 4, 3), torch.randn(2, 3, *[9] * (layer(1, 1, 1).weight.ndim - 2))
    model = nn.Sequential(ct.convert(copy.deepcopy(net)), nn.ReLU(inplace=True))
    with ct.enable(min_flops=1e15):
        y = model(x)
    torch.testing.assert_close(y, torch.relu(net(x)))
