"""Compiled models whose weights, layers or devices change between calls; transforms, checkpoints and methods."""

import copy
import gc
import threading

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_checks import alike, forms, right
from torch_small import Called, both, picture

import convdispatch.torch as ct
from convdispatch.torch.graph import constants, inductor
from convdispatch.torch.graph.engine_choice import Race
from convdispatch.torch.graph.forms import GraphForms

nn = torch.nn
ARRAY = np.ones(1)
AVAILABLE = inductor.available  # which the module's fixture hides
pytestmark = pytest.mark.usefixtures("without_compiler")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def compiled(model):
    return torch.compile(model, backend="convdispatch")


def graphs():
    return [each for each in gc.get_objects() if type(each) is GraphForms and each._weight_sets.sets]


@pytest.mark.parametrize("count", [2, 4, 6])
def test_models_of_one_class_keep_their_weights(count, monkeypatch):
    """Dynamo may use one graph for all; forms of the last sets of weights are kept, and freed with their models."""
    monkeypatch.setattr(constants, "MAX_SETS", 4)
    before = set(map(id, graphs()))
    models = [Called().eval() for _ in range(count)]
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
    monkeypatch.setattr(inductor, "available", AVAILABLE)
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
    "a part by data": lambda m: m.one.weight.data[0].zero_(),
    "copied by data": lambda m: m.two.weight.data.copy_(torch.randn(3, 4, 1, 1)),
    "new data": lambda m: setattr(m.two.weight, "data", m.two.weight.data * 2),
    "new data of a bias": lambda m: setattr(m.two.bias, "data", m.two.bias.data + 1),
    "no bias": lambda m: setattr(m.two, "bias", None),
    "loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "double": lambda m: m.double(),
    "bfloat16": lambda m: m.bfloat16(),
    "swapped": lambda m: torch.utils.swap_tensors(m.two.weight, nn.Parameter(m.two.weight * 2, requires_grad=False)),
    "learning": lambda m: m.requires_grad_(True),
    "training": lambda m: m.train(),
    "another layer": lambda m: setattr(m, "two", nn.Conv2d(4, 3, 3).requires_grad_(False)),
    "no layer": lambda m: setattr(m, "two", nn.Identity()),
    "pruned": lambda m: nn.utils.prune.l1_unstructured(m.two, "weight", 0.5),
    "parametrized": lambda m: nn.utils.parametrizations.weight_norm(m.two),
    "a stride": lambda m: setattr(m.one, "stride", (2, 2)),
    "a hook": lambda m: m.two.register_forward_hook(lambda part, given, y: y * 2) and None,
    "a hook before": lambda m: m.two.register_forward_pre_hook(lambda part, given: (given[0] * 2,)) and None,
}


@pytest.mark.parametrize("door", ["convert", "backend"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_model_after_a_call(name, door):
    import torch.nn.utils.prune

    if door == "backend" and "hook" in name:
        pytest.skip("Dynamo looks at no hook that is added after a call")
    model = Called().eval().requires_grad_(False)
    fused = ct.convert(model, fuse=True) if door == "convert" else compiled(model)
    changed, x = fused if door == "convert" else model, picture()
    with torch.no_grad():
        fused(x)
        fused(x)
        torch.manual_seed(1)
        CHANGES[name](changed)
        plain = Called().eval()
        plain.one, plain.two = changed.one, changed.two
        x = x.to(changed.one.weight.dtype)
        for _ in range(3):
            alike(fused(x), plain(x), limit={"bfloat16": 2e-2, "double": 1e-12}.get(name, 1e-5))


def test_a_module_may_go_to_another_device():
    _, fused = both()
    with torch.no_grad():
        fused(picture())
        assert fused.to("meta")(picture().to("meta")).is_meta


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


# --- transforms, checkpoints, files ---------------------------------------------------------------------------------


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
def test_a_second_pass_of_checkpoint_writes_the_running_statistics_as_pytorch_does(learns):
    def statistics(compiled):
        torch.manual_seed(0)
        net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).requires_grad_(learns)
        x = picture().requires_grad_()
        checkpoint(compiled(net), x, use_reentrant=False).square().sum().backward()
        return list(net.buffers())

    ours = statistics(compiled)
    for found, wanted in zip(ours, statistics(lambda net: net), strict=True):
        torch.testing.assert_close(found, wanted)


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


@pytest.mark.parametrize("door", ["convert", "backend"])
def test_methods_assertions_and_sizes(door):
    model = Methods().eval().requires_grad_(False)
    fused, x = (ct.convert(model, fuse=True) if door == "convert" else compiled(model)), picture()
    with torch.no_grad():
        for _ in range(2):
            alike(fused(x), model(x))
            alike(fused.encode(x), model.encode(x))
            for size in ([11, 11], [12, 12]):
                alike(fused.decode(fused.encode(x), size), model.decode(model.encode(x), size))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="nonzero value"):
                fused(x * 1e6)
    with pytest.raises(TypeError, match="NoneType"):
        ct.conv_transpose2d(None, model.d.weight)


_SMALL = (
    nn.Conv2d(3, 8, 3),
    nn.ConvTranspose2d(3, 4, 3, stride=2),
    nn.Conv1d(3, 4, 3),
    nn.Sequential(nn.Conv2d(3, 8, 3)),
)


@pytest.mark.parametrize("layer", _SMALL)
def test_a_layer_by_itself_is_a_form_without_a_warning(layer, recwarn):
    x = torch.randn(1, 3, *[9] * (next(layer.parameters()).ndim - 2))
    fused = ct.convert(layer.eval(), fuse=True)
    with torch.no_grad():
        right(fused, layer, x)
    assert not recwarn.list
    assert len(forms(fused)) == 1
    assert "1 convolutions" in forms(fused)[0]
    if type(layer) is nn.Conv2d:
        for wrong in (None, "word"):
            with pytest.raises(TypeError, match="conv2d"), torch.no_grad():
                ct.convert(layer, fuse=True)(wrong)


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
