"""What a fused model's code does beside calling its parts, and what others do with it: methods, loops, state,
TorchScript, other users of Dynamo, functorch."""

import copy
import io
import warnings

import pytest
import torch
from torch.nn.utils import prune
from torch_checks import error, forms, in_double, right
from torch_small import Body, Disabled, Net

import convdispatch.torch as ct

pytestmark = pytest.mark.usefixtures("without_compiler")
nn = torch.nn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with ct.enable(solver="im2col*"):  # one solver: few kernels to compile
        yield


def picture(*shape):
    return torch.randn(*(shape or (1, 3, 9, 9)))


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.norm.running_mean += 0.5

    def features(self, x):
        return torch.relu(self.norm(self.conv(x)))

    def forward(self, x):
        return self.last(self.features(x))

    def loss(self, x):
        return x.sum()


class Holder(nn.Module):
    """Decides by values, so it is captured in several graphs; ``how`` is how it uses its parts."""

    def __init__(self, how):
        super().__init__()
        self.how, self.body = how, Features()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.layers[1].running_mean += 0.5

    def use(self, x):
        return self.how(self, x)

    def forward(self, x):
        if float(x.sum()) > 1e9:
            return x
        return self.body.loss(x) if self.training else self.use(x)


def _through(body, x):
    return body.features(x)


def listed(m, x):
    found = []
    for name, layer in m.body.named_children():
        x = layer(x)
        found += [x] if name != "last" else []
    return torch.cat(found, 1)


def iterated(m, x):
    found = []
    for layer in m.layers:
        x = layer(x)
        found.append(x.mean())
    return torch.stack(found)


def enumerated(m, x):
    for number, layer in enumerate(m.layers):
        x = layer(x) if number < 2 else x
    return x


USES = {
    "a method": lambda m, x: m.body.features(x),
    "a helper": lambda m, x: _through(m.body, x),
    "an alias": lambda m, x: [part.features(x) for part in (m.body, m.body)][1],
    "a layer": lambda m, x: m.body.conv(x),
    "listed": listed,
    "iterated": iterated,
    "indexed": lambda m, x: m.layers[0](x),
    "sliced": lambda m, x: m.layers[:2](x),
    "counted": lambda m, x: m.layers(x) / len(m.layers),
    "enumerated": enumerated,
    "called": lambda m, x: m.body(x)[..., 1:-1, 1:-1] + m.layers(x) if m.layers is not None else x,
}


@pytest.mark.parametrize("name", USES)
@torch.no_grad()
def test_what_is_done_with_parts_beside_calling_them_stays_possible(name):
    net = Holder(USES[name]).eval()
    fused = ct.convert(net, fuse=True)
    right(fused, net, picture())
    assert any("convolutions" in each for each in forms(fused)), forms(fused)
    assert len(ct.fusion(fused).breaks) == 1


@torch.no_grad()
def test_methods_and_parts_that_are_called_by_themselves():
    net, x = Holder(USES["called"]).eval(), picture()
    fused = ct.convert(copy.deepcopy(net), fuse=True)
    for call in (
        lambda m: m.use(x), lambda m: m.body.features(x), lambda m: m.body(x), lambda m: m.layers[:2](x),
        lambda m: m.body.loss(x),
    ):  # fmt: skip
        assert error(call(fused), call(net)) < 1e-5
    assert any(where.startswith("body, ") for where in ct.fusion(fused).forms), ct.fusion(fused)


def test_scripted_models_and_parts_stay_what_they_are():
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()).eval())
    x = picture()
    for whole in (script, torch.jit.trace(script, x), torch.jit.freeze(script)):
        with pytest.warns(match="ScriptModule"):
            assert error(ct.convert(whole, fuse=True)(x), whole(x)) < 1e-6
    model = nn.Sequential(nn.Conv2d(3, 3, 1), script, nn.Conv2d(3, 2, 1)).eval()
    assert error(ct.convert(model, fuse=True)(x), model(x).double()) < 1e-5


def test_weights_that_a_call_computed_are_copied():
    layers = [nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)]
    prune.l1_unstructured(layers[2], "weight", 0.5)
    model, x = nn.Sequential(*layers).eval(), picture()
    wanted = model(x)  # with gradients: PyTorch's deepcopy refuses the weights that it leaves
    fused = ct.convert(model, fuse=True)
    assert error(fused(x), wanted.double()) < 1e-5
    with torch.no_grad():
        for each in (model, fused):
            each.get_parameter("0.weight_g").mul_(2)
        assert error(fused(x), model(x).double()) < 1e-5


class Scaled(nn.Conv2d):
    """A layer of another class, which is found all the same."""

    def forward(self, x):
        return torch.nn.functional.conv2d(x, self.weight * 0.5, self.bias)


def padded(m, x):
    """As transformers' Mimi pads."""
    extra = torch.ceil(x.shape[-1] / m.stride).to(torch.int64)
    return m.conv(torch.nn.functional.pad(x, (0, extra)))


@torch.no_grad()
def test_layers_of_any_name_are_found_and_what_fake_tensors_refuse_is_not_logged(caplog):
    model = nn.Sequential(Scaled(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    fused = ct.convert(model, fuse=True)
    right(fused, model, picture())
    assert "1 convolutions" in str(ct.fusion(fused)), ct.fusion(fused)
    model = Body(padded, conv=nn.Conv1d(3, 4, 3))
    model.register_buffer("stride", torch.tensor(2))
    fused, x = ct.convert(model.eval(), fuse=True), picture(1, 3, 5)
    assert error(fused(x), model(x).double()) < 1e-5
    assert "form for" in str(ct.fusion(fused))
    assert not [each for each in caplog.records if each.name == "torch._subclasses.fake_tensor"]


# --- what a call leaves ---------------------------------------------------------------------------------------------


def keeps_state(m, x):
    y, m.last = m.conv(torch.cat([m.last, x], 2)), x[:, :, -2:]
    return y


def keeps_state_where_a_graph_breaks(m, x):
    m.last = x[:, :, -2:]
    return m.conv(x) if float(x.sum()) < 1e9 else x


def keeps_a_list(m, x):
    m.log.append(m.conv(x))
    return m.log[-1]


def counts(m, x):
    m.calls += 1
    return m.conv(x) * m.calls


@pytest.mark.parametrize("how", [keeps_state, keeps_state_where_a_graph_breaks, keeps_a_list, counts])
@torch.no_grad()
def test_what_a_call_leaves_is_left_by_each(how):
    part = Body(how, conv=nn.Conv1d(3, 3, 3), last=torch.zeros(1, 3, 2), log=[], calls=0)
    model = nn.Sequential(part, nn.Conv1d(3, 2, 1)).eval()
    fused = ct.convert(model, fuse=True)
    assert type(fused[0].last) is torch.Tensor
    for _ in range(3):
        x = picture(1, 3, 8)
        assert error(fused(x), model(x).double()) < 1e-5  # it counted once, while it was traced
        assert error(fused[0].last + 1, model[0].last + 1) == 0
        assert (len(fused[0].log), fused[0].calls) == (len(model[0].log), model[0].calls)


@torch.no_grad()
def test_a_table_that_is_kept_of_weights_is_computed_by_each_call():
    def body(m, x):  # as timm's LeViT
        if "bias" not in m.kept:
            m.kept["bias"] = m.bias[m.places][:, None, None]
        return m.conv(x) + m.kept["bias"]

    model = Body(body, conv=nn.Conv2d(3, 4, 1), bias=nn.Parameter(torch.randn(2)), kept={})
    model.register_buffer("places", torch.tensor([0, 1, 1, 0]))
    model, x = model.eval(), picture()
    fused = ct.convert(copy.deepcopy(model), fuse=True)
    assert error(fused(x), model(x).double()) < 1e-5
    for each in (fused, model):
        each.kept.clear()
        each.get_parameter("bias").mul_(2)
    assert error(fused(x), model(x).double()) < 1e-5


class Part(nn.Module):
    """As segmentation_models_pytorch's encoders and RAFT: the model reads numbers of its part, and decides by them."""

    reduction = 2

    @property
    def channels(self):
        return [3, self.conv.out_channels]

    @property
    def broken(self):
        raise RuntimeError

    def __init__(self):
        super().__init__()
        self.conv, self.sizes, self.kept = nn.Conv2d(3, 4, 3), (4, 4), [1]

    def forward(self, x):
        return torch.relu(self.conv(x))


def reading(m, x):
    part = m.part
    return part(x) if x.sum() < 1e9 and part.sizes[0] == 4 == sum([*part.channels, -1]) - part.reduction else x


@torch.no_grad()
def test_numbers_of_a_part_stay_when_it_is_fused():
    net, x = Body(reading, part=Part()).eval(), picture()
    fused = ct.convert(net, fuse=True)
    assert isinstance(fused.part, Part)
    for each in (fused, copy.deepcopy(fused)):
        right(each, net, x)
        each.part.channels.clear()
        assert each.part.channels == [3, 4]
        assert each.part.kept == [1]
        with pytest.raises(RuntimeError):
            _ = each.part.broken
        each.part.reduction = 3  # what the model's code reads may be set
        assert each(x) is x


# --- other users of Dynamo, functorch, TorchScript ------------------------------------------------------------------


class Scopes(Net):
    def middle(self, y):
        with torch.enable_grad(), torch.autocast("cpu"):
            y = torch.nn.functional.conv2d(y, self.two.weight)
        return y.float().repeat(1, 2, 1, 1)


class Nested(Net):
    def middle(self, y):
        return torch.compile(lambda v: v.sin(), backend="convdispatch")(y)


class NestedInAnother(Net):
    def middle(self, y):
        return torch.compile(lambda v: v.sin(), backend="aot_eager")(y)


class Within(Net):
    def __init__(self):
        super().__init__()
        self.two = torch.compile(self.two, backend="convdispatch")


DOORS = {
    "convert": lambda model: ct.convert(model, fuse=True),
    "backend": lambda model: torch.compile(model, backend="convdispatch"),
    "another's": lambda model: torch.compile(ct.convert(model, fuse=True), backend="aot_eager"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [Net, Disabled, Nested, NestedInAnother, Scopes, Within])
@torch.no_grad()
def test_a_model_that_uses_dynamo_itself(kind, door):
    if kind is Within and door != "backend":
        pytest.skip("a part that is compiled by itself is no copy's")
    model, ours = kind().eval(), ct.counters()["ours"]
    made = DOORS[door](model)
    plain = copy.deepcopy(model) if kind is not Within else Net().eval()
    plain.load_state_dict({name.replace("_orig_mod.", ""): each for name, each in model.state_dict().items()})
    for _ in range(2):
        x = picture(1, 3, 5, 6)
        with torch.compiler.set_stance("force_eager"):
            wanted = plain(x)
        assert error(made(x), wanted) < (1e-2 if kind is Scopes else 1e-5)
    assert ct.counters()["ours"] > ours
    torch.compiler.reset()


@torch.no_grad()
def test_an_upsampling_to_sizes_that_change():
    def body(m, x, size):
        y = nn.functional.interpolate(m.net(x), size=size, mode="bilinear")
        return nn.functional.interpolate(y, scale_factor=1.5)

    model = Body(body, net=Net()).eval()
    made = ct.convert(model, fuse=True)
    for size in range(4, 9):
        right(made, model, picture(1, 3, size, size), (size + 3, 2 * size))
    assert all("2 convolutions" in each for each in forms(made)), ct.fusion(made)


def test_functional_calls_and_gradients_of_inputs():
    model, x = Net().eval(), picture()
    made = ct.convert(model, fuse=True)
    doubled, twice = ({name: value * 2 for name, value in each.state_dict().items()} for each in (made, model))
    got = torch.func.functional_call(made, doubled, (x,))
    assert error(got, torch.func.functional_call(model, twice, (x,))) < 1e-5
    right(made, model, x)
    slope = torch.func.grad(lambda v: made(v).sum())(x)
    assert error(slope, torch.func.grad(lambda v: model(v).sum())(x)) < 1e-5


ACTIVATIONS = [nn.ReLU, nn.ReLU6, nn.SiLU, nn.Tanh, nn.Mish, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_script_and_trace_of_a_fused_model(activation):
    """TorchScript gets PyTorch's layers, transposed ones too; a trace warns of nothing."""
    layers = {"one": nn.Conv2d(3, 3, 3, padding=1), "norm": nn.BatchNorm2d(3), "act": activation()}
    net = nn.Sequential(*layers.values(), nn.ConvTranspose2d(3, 4, 3, 2), nn.Conv2d(4, 4, 1))
    model, x, other = net.eval(), picture(), picture()
    fused, place = ct.convert(model, fuse=True), io.BytesIO()
    scripted = torch.jit.script(fused)
    torch.jit.save(scripted, place)
    place.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(fused, x)
    for found in (scripted, torch.jit.load(place), traced, fused):
        assert error(found(other), in_double(model, other)) < 1e-5


def test_script_leaves_a_fused_model_as_it_is_and_takes_each_layer_for_itself():
    """PyTorch knows layers by their addresses while it scripts: one that is freed leaves its own to the next."""
    for turn in range(8):
        layers = [
            (nn.Conv2d(c, c + 1, 3, padding=1), nn.BatchNorm2d(c + 1), nn.GELU(), nn.Dropout()) for c in range(3, 9)
        ]
        for model in (nn.Sequential(*sum(layers, ())), nn.Sequential(*(nn.Sequential(*each) for each in layers))):
            x, fused = picture(1, 3, 8, 8), ct.convert(model.eval(), fuse=True)
            before = [(name, type(each)) for name, each in fused.named_modules()], list(fused.state_dict())
            expected, scripted = model(x), torch.jit.script(fused)
            assert error(scripted(x), expected) < 1e-5
            assert before == ([(name, type(each)) for name, each in fused.named_modules()], list(fused.state_dict()))
            assert turn or error(fused(x), expected) < 1e-5  # once: Dynamo traces 24 layers for seconds
