"""A fused model's code may do more with its parts than call them: use their methods, their layers, go through them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch.nn.utils import prune  # noqa: E402 (torch is asked for first)
from torch_checks import error, forms  # noqa: E402

import convdispatch.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_compiler")
nn = torch.nn


class Body(nn.Module):
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


def _through(body, x):
    return body.features(x)


class Holder(nn.Module):
    """Decides by values, so it is captured in several graphs; ``use`` is how it uses its parts."""

    def __init__(self):
        super().__init__()
        self.body = Body()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.layers[1].running_mean += 0.5

    def forward(self, x):
        if float(x.sum()) > 1e9:
            return x
        if self.training:
            return self.body.loss(x)
        return self.use(x)


class Method(Holder):
    def use(self, x):
        return self.body.features(x)


class Helper(Holder):
    def use(self, x):
        return _through(self.body, x)


class Alias(Holder):
    def use(self, x):
        body = self.body
        return [part.features(x) for part in (body, body)][1]


class Layer(Holder):
    def use(self, x):
        return self.body.conv(x)


class Listed(Holder):
    def use(self, x):
        found = []
        for name, layer in self.body.named_children():
            x = layer(x)
            found += [x] if name != "last" else []
        return torch.cat(found, 1)


class Iterated(Holder):
    def use(self, x):
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x.mean())
        return torch.stack(found)


class Indexed(Holder):
    def use(self, x):
        return self.layers[0](x)


class Sliced(Holder):
    def use(self, x):
        return self.layers[:2](x)


class Counted(Holder):
    def use(self, x):
        return self.layers(x) / len(self.layers)


class Enumerated(Holder):
    def use(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x) if number < 2 else x
        return x


class Called(Holder):
    def use(self, x):
        return self.body(x)[..., 1:-1, 1:-1] + self.layers(x) if self.layers is not None else x


USES = [Method, Helper, Alias, Layer, Listed, Iterated, Indexed, Sliced, Counted, Enumerated, Called]


@pytest.mark.parametrize("kind", USES, ids=lambda kind: kind.__name__)
def test_what_is_done_with_parts_beside_calling_them_stays_possible(kind):
    torch.manual_seed(0)
    net, x = kind().eval(), torch.randn(1, 3, 9, 9)
    fused = ct.convert(copy.deepcopy(net), fuse=True)
    with torch.no_grad():
        assert error(fused(x), net.double()(x.double())) < 1e-5
    assert any("convolutions" in each for each in forms(fused)), forms(fused)
    assert len(ct.fusion(fused).breaks) == 1


def test_methods_and_parts_that_are_called_by_themselves():
    torch.manual_seed(0)
    net, x = Called().eval(), torch.randn(1, 3, 9, 9)
    fused = ct.convert(copy.deepcopy(net), fuse=True)
    with torch.no_grad():
        assert error(fused.use(x), net.use(x)) < 1e-5
        assert error(fused.body.features(x), net.body.features(x)) < 1e-5
        assert error(fused.body(x), net.body(x)) < 1e-5
        assert error(fused.layers[:2](x), net.layers[:2](x)) < 1e-5
        assert fused.body.loss(x).equal(net.body.loss(x))
    assert any(where.startswith("body, ") for where in ct.fusion(fused).forms), ct.fusion(fused)


def test_scripted_models_and_parts_stay_what_they_are():
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()).eval())
    x = torch.randn(1, 3, 6, 6)
    for whole in (script, torch.jit.trace(script, x), torch.jit.freeze(script)):
        with pytest.warns(match="ScriptModule"):
            assert ct.convert(whole, fuse=True)(x).equal(whole(x))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), script, nn.Conv2d(3, 2, 1)).eval()
    assert error(ct.convert(model, fuse=True)(x), model(x).detach().double()) < 1e-5


def test_weights_that_a_call_computed_are_copied():
    layers = [nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)]
    prune.l1_unstructured(layers[2], "weight", 0.5)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 6, 6)
    wanted = model(x)  # with gradients: PyTorch's deepcopy refuses the weights that it leaves
    fused = ct.convert(model, fuse=True)
    assert error(fused(x), wanted.detach().double()) < 1e-5
    with torch.no_grad():
        for each in (model, fused):
            each.get_parameter("0.weight_g").mul_(2)
        assert error(fused(x), model(x).double()) < 1e-5


def test_layers_of_any_name_are_found():
    class Scaled(nn.Conv2d):
        def forward(self, x):
            return torch.nn.functional.conv2d(x, self.weight * 0.5, self.bias)

    model, x = nn.Sequential(Scaled(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(1, 3, 6, 6)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert error(fused(x), model(x).double()) < 1e-5
    assert "1 convolutions" in str(ct.fusion(fused)), ct.fusion(fused)


def test_what_fake_tensors_refuse_is_not_logged(caplog):
    class Padded(nn.Module):  # transformers' Mimi pads so
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 4, 3)
            self.register_buffer("stride", torch.tensor(2))

        def forward(self, x, *more):
            extra = torch.ceil(x.shape[-1] / self.stride).to(torch.int64)
            return self.conv(torch.nn.functional.pad(x, (0, extra)))

    model, x = Padded().eval(), torch.randn(1, 3, 5)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert error(fused(x), model(x).double()) < 1e-5
    assert "form for" in str(ct.fusion(fused))
    assert not [each for each in caplog.records if each.name == "torch._subclasses.fake_tensor"]


class Stream(nn.Module):
    """Keeps the end of what it was given; ``how`` is what a call leaves."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.how, self.calls, self.log = nn.Conv1d(3, 3, 3), how, 0, []
        self.last = torch.zeros(1, 3, 2)

    def forward(self, x):
        y = self.conv(torch.cat([self.last, x], 2))
        if self.how == "state":
            self.last = x[:, :, -2:]
        elif self.how == "list":
            self.log.append(y)
        else:
            self.calls += 1
            y = y * self.calls
        return y


@pytest.mark.parametrize("how", ["state", "list", "count"])
def test_what_a_call_leaves_is_left_by_each(how):
    model = nn.Sequential(Stream(how), nn.Conv1d(3, 2, 1)).eval()
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(1, 3, 8)
            assert error(fused(x), model(x).double()) < 1e-5  # it counted once, while it was traced


def test_what_a_call_leaves_is_left_where_a_graph_breaks():
    class Fails(Stream):
        def forward(self, x):
            self.last = x[:, :, -2:]
            return self.conv(x) if float(x.sum()) < 1e9 else x

    model = Fails("state").eval()
    fused, x = ct.convert(model, fuse=True), torch.randn(1, 3, 8)
    assert type(fused.last) is torch.Tensor
    with torch.no_grad():
        assert error(fused(x), model(x).double()) < 1e-5


def test_a_table_that_is_kept_of_weights_is_computed_by_each_call():
    class Kept(nn.Module):  # as timm's LeViT
        def __init__(self):
            super().__init__()
            self.conv, self.bias, self.kept = nn.Conv2d(3, 4, 1), nn.Parameter(torch.randn(2)), {}
            self.register_buffer("places", torch.tensor([0, 1, 1, 0]))

        def forward(self, x):
            if "bias" not in self.kept:
                self.kept["bias"] = self.bias[self.places][:, None, None]
            return self.conv(x) + self.kept["bias"]

    model, x = Kept().eval(), torch.randn(1, 3, 4, 4)
    fused = ct.convert(copy.deepcopy(model), fuse=True)
    with torch.no_grad():
        assert error(fused(x), model(x).double()) < 1e-5
        fused.kept.clear()
        fused.get_parameter("bias").mul_(2)
        model.kept.clear()
        model.bias.mul_(2)
        assert error(fused(x), model(x).double()) < 1e-5
