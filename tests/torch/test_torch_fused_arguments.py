"""Fused models take arguments with defaults as the models do that they were made of."""

from __future__ import annotations

import collections
import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import error, forms  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_compiler")
nn, F = torch.nn, torch.nn.functional


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x, scale=1.0, mask=None, *, early=False):
        y = self.norm(self.conv(x)) * scale
        y = F.relu(y if mask is None else y * mask)
        return y if early else self.last(y)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x, normed=True):
        y = self.conv(x)
        return self.norm(y) if normed else y


class Skipping(Scaled):
    """As segmentation_models_pytorch's decoders: what is done depends on an argument's sizes."""

    def forward(self, x, skip=None):
        y = F.relu(self.norm(self.conv(x)))
        if skip is not None and skip.shape[1] != 0 and skip.size(0) == len(x.shape) - 2:
            y = y + skip * skip.shape[-1]
        return self.last(y)


class Gated(Scaled):
    """A part of it is run for another argument alone, as in segmentation_models_pytorch's MAnet."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 1))

    def forward(self, x, skip=None):
        y = F.relu(self.norm(self.conv(x)))
        return self.last(y if skip is None else y * self.gate(skip))


class Asking(nn.Module):
    """What is done depends on what an argument is, as in MONAI's BasicUNet and its like."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.conv, self.last = ask, nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), nn.Conv2d(8, 8, 1)

    def forward(self, x, skip):
        y = self.conv(x)
        tensor = {
            "isinstance": lambda: isinstance(skip, (list, torch.Tensor)),
            "torch.jit": lambda: torch.jit.isinstance(skip, torch.Tensor),
            "is_tensor": lambda: torch.is_tensor(skip),
        }[self.ask]()
        return self.last(y + skip if tensor else y)


def trained(model):
    torch.manual_seed(0)
    for _ in range(2):
        model(torch.randn(4, 8, 6, 6) * 2 + 1)
    return model.eval()


CALLS = [
    lambda f, x, m: f(x),
    lambda f, x, m: f(x, 2.0),
    lambda f, x, m: f(x, mask=m),
    lambda f, x, m: f(x, 0.5, m),
    lambda f, x, m: f(x, mask=m, scale=3),
    lambda f, x, m: f(x=x, early=True),
    lambda f, x, m: f(x, 1.0, None),
]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_every_way_to_call(mode):
    model = trained(Scaled())
    fused, x, mask = ct.convert(model, fuse=True), torch.randn(2, 8, 9, 9), torch.rand(2, 8, 9, 9)
    with mode():
        for call in CALLS * 2:
            assert error(call(fused, x, mask), call(model, x, mask)) < 1e-5
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            fused(mask=mask)
        with pytest.raises(TypeError, match="unexpected keyword"):
            fused(x, masks=mask)


def test_what_is_done_may_depend_on_an_arguments_sizes():
    model = trained(Skipping())
    fused, x = ct.convert(model, fuse=True), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        for shape in ((2, 8, 9, 9), (1, 8, 9, 9), (2, 8, 1, 1), (2, 8, 9, 1), (2, 0, 9, 9)) * 2:
            skip = torch.rand(shape)
            assert error(fused(x, skip), model(x, skip)) < 1e-5, shape
        assert error(fused(x), model(x)) < 1e-5
        fused.last.weight = nn.Parameter(fused.last.weight * 2, requires_grad=False)
        twin = copy.deepcopy(fused).double()
        assert error(fused(x, skip[:, :, :1]), twin(x.double(), skip[:, :, :1].double())) < 1e-5


def test_what_only_another_argument_asks_for_is_kept():
    model = trained(Gated())
    fused, x, skip = ct.convert(model, fuse=True), torch.randn(2, 8, 9, 9), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        for each, wide in ((fused, False), (copy.deepcopy(fused), False), (copy.deepcopy(fused).double(), True)):
            a, b = (x.double(), skip.double()) if wide else (x, skip)
            for _ in range(2):
                assert error(each(a), model(x)) < 1e-5
                assert error(each(a, b), model(x, skip)) < 1e-5
        fused.get_submodule("gate.0").weight.data.mul_(2)
        model.gate[0].weight.data.mul_(2)
        assert error(fused(x, skip), model(x, skip)) < 1e-5


class Answer(collections.OrderedDict):
    """As transformers' ModelOutput: a place asks for the value there."""

    def __getitem__(self, key):
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Answering(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())

    def forward(self, x):
        return Answer(y=self.conv(x))


def test_an_answer_of_a_kind_of_its_own_stays_one():
    model, x = Answering().eval(), torch.randn(2, 8, 9, 9)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        got = fused(x)
        assert type(got) is Answer
        assert error(got[0], model(x)[0]) < 1e-5
    assert "1 convolutions" in forms(fused)[0]


@pytest.mark.parametrize("ask", ["isinstance", "torch.jit", "is_tensor"])
def test_what_an_argument_is_may_be_asked(ask):
    model, x = Asking(ask).eval(), torch.randn(2, 8, 9, 9)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for skip in (torch.randn(2, 8, 7, 7), None):
            assert error(fused(x, skip), model(x, skip)) < 1e-5


def test_weights_are_the_same_tensors():
    fused, x = ct.convert(trained(Scaled()), fuse=True), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        before = fused(x, 2.0)
        assert {id(p) for p in fused.parameters()} == {id(p) for p in ct.convert(fused).parameters()}
        for p in fused.parameters():
            p.data.mul_(1.5)
        twin = copy.deepcopy(fused).double()
        assert error(fused(x, 2.0), twin(x.double(), 2.0)) < 1e-5
        assert error(fused(x, 2.0), before) > 0.1
        fused.last.weight = nn.Parameter(fused.last.weight * 2, requires_grad=False)
        assert error(fused(x, 2.0), copy.deepcopy(fused).double()(x.double(), 2.0)) < 1e-5


def test_what_an_argument_leaves_out_is_left_out():
    model, x = trained(Bare()), torch.randn(1, 8, 6, 6)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for normed in (True, False, True):
            assert error(fused(x, normed=normed), model(x, normed)) < 1e-5


def test_a_copy_and_a_file_take_all_arguments():
    model, x, place = trained(Scaled()), torch.randn(1, 8, 6, 6), io.BytesIO()
    fused = ct.convert(model, fuse=True)
    torch.save(fused, place)
    place.seek(0)
    for each in (copy.deepcopy(fused), torch.load(place, weights_only=False)):
        with torch.no_grad():
            for call in CALLS[:4]:
                assert error(call(each, x, torch.ones(1)), call(model, x, torch.ones(1))) < 1e-5


def test_answers_may_be_inputs_and_lie_in_any_structure():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, 1)

        def forward(self, x, y):
            first = torch.relu(self.one(x))
            return {"levels": [x, first, (self.two(first), first)], "size": 7, "none": None, "other": y}

    model, x, y = Encoder().eval(), torch.randn(1, 3, 6, 6), torch.randn(2)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        wanted, got = model(x, y), fused(x, y)
    assert "2 convolutions" in forms(fused)[0]
    assert type(got) is dict
    assert list(got) == list(wanted)
    assert (got["size"], got["none"]) == (7, None)
    assert type(got["levels"]) is list
    assert got["levels"][0] is x
    assert got["other"] is y
    assert got["levels"][1] is got["levels"][2][1], "what is answered twice is one tensor"
    pairs = zip((got["levels"][1], got["levels"][2][0]), (wanted["levels"][1], wanted["levels"][2][0]), strict=True)
    assert all(error(one, other.double()) < 1e-5 for one, other in pairs)


def test_what_writes_to_an_input_or_returns_a_constant():
    class Writes(nn.Module):
        def __init__(self, constant):
            super().__init__()
            self.conv, self.constant = nn.Conv2d(3, 3, 1), constant
            self.register_buffer("table", torch.ones(3))

        def forward(self, x):
            return (self.conv(x), self.table) if self.constant else (self.conv(x), x.add_(1))

    for constant in (True, False):
        model, x = Writes(constant).eval(), torch.randn(1, 3, 4, 4)
        fused = ct.convert(copy.deepcopy(model), fuse=True)
        with torch.no_grad():
            one, other = x.clone(), x.clone()
            wanted, got = model(one), fused(other)
        assert all(error(g, w.double()) < 1e-5 for g, w in zip(got, wanted, strict=True))
        assert other.equal(one)
        if constant:
            assert got[1] is fused.table
        else:
            assert got[1] is other


def test_a_list_of_tensors_is_given_to_a_form():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, levels):
            return [F.relu(self.two(F.interpolate(self.one(levels[1]), scale_factor=2) + levels[0])), levels[0]]

    model, fine, coarse = Decoder().eval(), torch.randn(1, 4, 6, 6), torch.randn(1, 3, 3, 3)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for kind in (list, tuple):
            got, same = fused(kind([fine, coarse]))
            assert error(got, model.double()([fine.double(), coarse.double()])[0]) < 1e-5
            assert same is fine
            model.float()
    assert len(forms(fused)) == 2, "a list and a tuple are two structures"
    assert all("2 convolutions" in words for words in forms(fused))


class Frozen(nn.Module):
    """A norm of fixed numbers, as detectors have it: its factor is computed of buffers."""

    def __init__(self):
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.rand(8) + 0.5)

    def forward(self, x):
        factor = self.weight.reshape(1, -1, 1, 1) * (self.variance.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * factor + (self.bias.reshape(1, -1, 1, 1) - self.mean.reshape(1, -1, 1, 1) * factor)


def test_what_is_computed_of_buffers_is_computed_anew():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Frozen(), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.ReLU()).eval()
    fused, x = ct.convert(model, fuse=True), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        for _ in range(3):
            assert error(fused(x), model.double()(x.double())) < 1e-5
            model.float()[1].variance.mul_(2)
            fused.get_buffer("1.variance").mul_(2)


def test_answers_lie_in_memory_as_the_models_own():
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)]

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, x):
            y = self.layers(x)
            return y, y.flatten(2).transpose(1, 2), y.mean((2, 3))

    model, x = Both().eval(), torch.randn(2, 3, 6, 7)
    last = x.contiguous(memory_format=torch.channels_last)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for given in (x, last, x, last):
            for got, wanted in zip(fused(given), model(given), strict=True):
                assert error(got, wanted.double()) < 1e-5
                assert got.stride() == wanted.stride()
        model.to(memory_format=torch.channels_last)
        assert ct.convert(model, fuse=True)(x)[0].stride() == model(x)[0].stride() == (80, 1, 20, 4)
    assert len(forms(fused)) == 2  # one for each format


def test_an_answer_whose_format_is_not_known_is_contiguous():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 3, padding=1)

        def forward(self, x):
            return self.two(torch.relu(x.contiguous() + self.one(x)))  # the first operand's format

    model, x = Sum().eval(), torch.randn(1, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert ct.convert(model, fuse=True)(x).stride() == model(x).stride() == (108, 36, 6, 1)


def test_numbers_of_another_type_are_as_the_models_own():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
            self.register_buffer("factor", torch.tensor(3.0, dtype=torch.float64))

        def forward(self, x):
            return self.last((self.conv(x) * self.factor).mean((2, 3)))

    model, x = Scaled().eval(), torch.randn(2, 3, 6, 6)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert error(fused(x), model(x).double()) < 1e-5
        assert fused(x).dtype == model(x).dtype == torch.float32
        assert "convolutions" in forms(fused)[0]
        flat = [nn.Flatten(), nn.Linear(108, 4), nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 4, 1)]
        for layers in ([model.conv], flat):
            whole = nn.Sequential(*layers).eval()
            with pytest.raises(RuntimeError):
                ct.convert(whole, fuse=True)(x.double())  # answered NaN


def test_sizes_are_given_as_tuples():
    class Resized(nn.Module):  # as transformers' DepthAnything
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x, residual=None, size=None):
            x = x if residual is None else x + residual
            return self.conv(F.interpolate(x, **({"scale_factor": 2} if size is None else {"size": size})))

    model, x = Resized().eval(), torch.randn(1, 3, 4, 4)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for others in ({}, {"size": (5, 6)}, {"size": torch.Size([6, 6])}, {"residual": x, "size": [3, 3]}):
            assert error(fused(x, **others), model(x, **others).double()) < 1e-5
