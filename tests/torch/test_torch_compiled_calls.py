"""What compiled models are given and what they answer: as the model itself, also where tensors share memory."""

import collections
import copy

import pytest
import torch
from torch_checks import alike, error, forms, right
from torch_small import Body, both, picture

import convdispatch.torch as ct

nn, F = torch.nn, torch.nn.functional
SCALES = {6: 2.0}
pytestmark = pytest.mark.usefixtures("without_compiler")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


OTHERS = {
    "the batch": lambda: picture(2, 3, 6, 6),
    "the width": lambda: picture(1, 3, 6, 7),
    "a view": lambda: picture(1, 3, 6, 8)[..., 1:-1],
    "the sign": lambda: -picture().abs(),
    "gradients": lambda: picture().requires_grad_(),
    "inference": picture,
}
BRANCHES = {
    # name: (what is asked, in which of OTHERS an input differs from one whose answer is another)
    "type in a set": (lambda x: 2.0 if x.dtype in {torch.float32} else 3.0, "the width"),
    "the type's name": (lambda x: 2.0 if "float32" in str(x.dtype) else 3.0, "the batch"),
    "a table of sizes": (lambda x: SCALES.get(x.shape[-1], 3.0), "the width"),
    "a set of sizes": (lambda x: 2.0 if x.shape[-1] in {6, 16} else 3.0, "the width"),
    "square": (lambda x: 2.0 if len({x.shape[-2], x.shape[-1]}) == 1 else 3.0, "the width"),
    "a size in words": (lambda x: 2.0 if f"{x.shape[-1]}" == "6" else 3.0, "the width"),
    "the class": (lambda x: 2.0 if type(x) is torch.Tensor else 3.0, "the width"),
    "gradients": (lambda x: 2.0 if x.requires_grad else 3.0, "gradients"),
    "contiguity": (lambda x: 2.0 if x.is_contiguous() else 3.0, "a view"),
    "strides": (lambda x: float(x.stride(0) % 7), "a view"),
    "the batch": (lambda x: float(x.shape[0]), "the batch"),
    "a value": (lambda x: 2.0 if x.sum() > 0 else 3.0, "the sign"),
    "a mode": (lambda x: 2.0 if torch.is_grad_enabled() else 3.0, "gradients"),
    "inference": (lambda x: 2.0 if torch.is_inference_mode_enabled() else 3.0, "inference"),
    "autocast": (lambda x: 2.0 if torch.is_autocast_enabled("cpu") else 3.0, "the batch"),
    "elements": (lambda x: float(x.numel() % 5 + 1), "the width"),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_taken_at_each_call(name):
    ask, change = BRANCHES[name]
    model, fused = both(lambda m, y, x: y * ask(x))
    modes = {"gradients": torch.enable_grad, "inference": torch.inference_mode}
    for kind in ("one", change, "one"):
        x = picture() if kind == "one" else OTHERS[kind]()
        with modes.get(kind, torch.no_grad)():
            alike(fused(x), model(x))


GIVEN = {
    "two": (lambda m, y, x, z: y - 2 * m.layers(z), lambda x, z: ((x, z), {})),
    "a list": (lambda m, y, both: y - 2 * m.layers(both[1]), lambda x, z: (([x, z],), {})),
    "a dictionary": (lambda m, y, both: y - 2 * m.layers(both["z"]), lambda x, z: (({"x": x, "z": z},), {})),
    "by name": (lambda m, y, x, z=None: y if z is None else y - 2 * m.layers(z), lambda x, z: ((), {"x": x, "z": z})),
    "or one": (lambda m, y, x, z=None: y if z is None else y - z, lambda x, z: ((x,) if x is z else (x, z), {})),
}


@pytest.mark.parametrize("name", GIVEN)
def test_one_tensor_given_twice_then_two(name):
    body, given = GIVEN[name]
    model, fused = both(body)
    x, z, shared = picture(), picture(), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        for pair in (
            *((x, x), (x, z), (z, z), (z, x), (shared[:1], shared[1:]), (shared[:1], shared[:1])),
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
    "a structure": lambda m, y, x: {"levels": [x, y, (y * 2, y)], "size": 7, "none": None, "other": x},
    "other views": lambda m, y, x: (y, y.flatten(2).transpose(1, 2), y.mean((2, 3))),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_share_memory_as_the_models_do(name):
    model, fused = both(ANSWERS[name])
    for form in (torch.contiguous_format, torch.contiguous_format, torch.channels_last):
        mine = picture(1, 3, 6, 7 if name == "other views" else 6).contiguous(memory_format=form)
        theirs = mine.clone()
        with torch.no_grad():
            got, wanted = fused(mine), model(theirs)
            alike(got, wanted)
            ours, own = (
                [each for each in torch.utils._pytree.tree_leaves(y) if isinstance(each, torch.Tensor)]
                for y in (got, wanted)
            )
            assert [each.stride() for each in ours] == [each.stride() for each in own]
            for one, other in ((ours, own), (own, ours)):
                assert [[each is y for y in one] for each in one] == [[each is y for y in other] for each in other]
            assert [each is mine for each in ours] == [each is theirs for each in own]
            for y in (ours, own):
                y[0].add_(1)
                y[-1].add_(1) if y[-1].dtype != torch.bool else None
            alike([mine, *ours], [theirs, *own])
    assert len(forms(fused)) == 2, "one for each format"
    assert name != "a structure" or all("2 convolutions" in each for each in forms(fused)), forms(fused)


class Answer(collections.OrderedDict):
    """As transformers' ModelOutput: a place asks for the value there."""

    def __getitem__(self, key):
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


def test_an_answer_of_a_kind_of_its_own_stays_one():
    model, fused = both(lambda m, y, x: Answer(y=y))
    with torch.no_grad():
        x = picture()
        got = fused(x)
        assert type(got) is Answer
        assert error(got[0], model(x)[0]) < 1e-5
    assert "2 convolutions" in forms(fused)[0]


def test_a_format_that_is_not_known_is_contiguous():
    """The first operand's format; and of a model that lies channels last itself."""
    model = Body(lambda m, x: m.two(torch.relu(x.contiguous() + m.one(x))), one=nn.Conv2d(8, 8, 1),
                 two=nn.Conv2d(8, 3, 3, padding=1)).eval()  # fmt: skip
    x = picture(1, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert ct.convert(model, fuse=True)(x).stride() == model(x).stride() == (108, 36, 6, 1)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
        layers, x = layers.to(memory_format=torch.channels_last), picture(2, 3, 6, 7)
        assert ct.convert(layers, fuse=True)(x).stride() == layers(x).stride() == (80, 1, 20, 4)


def writes_input(m, y, x):
    x.mul_(2)
    return y + x


def writes_part(m, y, x):
    x[:, :1].add_(1)
    return y + x


def answers_what_it_writes(m, y, x):
    return y, x.add_(1)


def writes_list(m, y, given):
    given.append(y)
    return y


@pytest.mark.parametrize("body", [writes_input, writes_part, answers_what_it_writes, writes_list])
def test_writes_to_inputs_are_the_callers(body):
    model, fused = both(body)
    for _ in range(3):
        mine, theirs = (x := picture()), x.clone()
        if body is writes_list:
            mine, theirs = [mine], [mine]
        with torch.no_grad():
            got, wanted = fused(mine), model(theirs)
        alike((got, mine), (wanted, theirs))
        assert body is not answers_what_it_writes or got[1] is mine


def test_a_buffer_that_is_answered_is_the_buffer():
    model = Body(lambda m, x: (m.conv(x), m.table), conv=nn.Conv2d(3, 3, 1)).eval()
    model.register_buffer("table", torch.ones(3))
    fused, x = ct.convert(model, fuse=True), picture()
    with torch.no_grad():
        got = fused(x)
        alike(got, model(x))
    assert got[1] is fused.table


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


# --- signatures -----------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x, scale=1.0, mask=None, *, early=False):
        y = self.norm(self.conv(x)) * scale
        y = F.relu(y if mask is None else y * mask)
        return y if early else self.last(y)


def trained(model):
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


def skipping(m, x, skip=None):
    """As segmentation_models_pytorch's decoders: what is done depends on an argument's sizes."""
    y = F.relu(m.norm(m.conv(x)))
    if skip is not None and skip.shape[1] != 0 and skip.size(0) == len(x.shape) - 2:
        y = y + skip * skip.shape[-1]
    return m.last(y)


def gated(m, x, skip=None):
    """A part is run for another argument alone, as in segmentation_models_pytorch's MAnet."""
    y = F.relu(m.norm(m.conv(x)))
    return m.last(y if skip is None else y * m.gate(skip))


def resized(m, x, residual=None, size=None):
    """As transformers' DepthAnything."""
    x = x if residual is None else x + residual
    return m.last(F.interpolate(x, **({"scale_factor": 2} if size is None else {"size": size})))


def decoding(m, levels):
    y = F.interpolate(m.last(levels[1]), scale_factor=2)
    return F.relu(m.small(y + levels[0]))


def asking(ask):
    """What is done depends on what an argument is, as in MONAI's BasicUNet and its like."""
    return lambda m, x, skip: m.last(m.conv(x) + skip if ask(skip) else m.conv(x))


X = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(1))
BODIES = {
    # body: the calls of the model, and how many convolutions its first form has
    "an argument's sizes": (
        skipping,
        [(X, torch.rand(s)) for s in ((2, 8, 9, 9), (1, 8, 9, 9), (2, 8, 1, 1), (2, 8, 9, 1), (2, 0, 9, 9))] + [(X,)],
        2,
    ),
    "a part for another argument": (gated, [(X,), (X, X.flip(-1))], 2),
    "a part that is left out": (
        lambda m, x, normed=True: m.norm(m.conv(x)) if normed else m.conv(x), [(X, True), (X, False)], 1,
    ),
    "isinstance": (asking(lambda each: isinstance(each, (list, torch.Tensor))), [(X, X), (X, None)], 2),
    "torch.jit": (asking(lambda each: torch.jit.isinstance(each, torch.Tensor)), [(X, X), (X, None)], 2),
    "is_tensor": (asking(torch.is_tensor), [(X, X), (X, None)], 2),
    "sizes as tuples": (
        resized,
        [(X,), (X, None, (5, 6)), (X, None, torch.Size([6, 6])), (X, X, [3, 3])],
        1,
    ),
    "a list and a tuple": (
        decoding,
        [(kind([picture(1, 4, 6, 6), picture(1, 8, 3, 3)]),) for kind in (list, tuple)],
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_what_is_done_may_depend_on_arguments(name):
    body, calls, count = BODIES[name]
    model = Body(
        body, conv=nn.Conv2d(8, 8, 3, padding=1), norm=nn.BatchNorm2d(8), last=nn.Conv2d(8, 4, 1),
        gate=nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 1)),
        small=nn.Conv2d(4, 4, 3, padding=1),
    )  # fmt: skip
    model.norm.running_mean.normal_()
    model = model.eval()
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        for each in (fused, copy.deepcopy(fused)):
            for given in calls * 2:
                right(each, model, *given)
        assert f"{count} convolutions" in forms(fused)[0], forms(fused)
        assert name != "a list and a tuple" or len(forms(fused)) == 2, "two structures"
        for part in (fused, model):
            part.last.weight = nn.Parameter(part.last.weight * 2, requires_grad=False)
            part.gate[0].weight.data.mul_(2)
        for given in calls:
            right(fused, model, *given)
        for given in calls[:2]:
            wide = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.double, given)
            right(copy.deepcopy(fused).double(), model, *wide)


def test_weights_are_the_same_tensors():
    fused, x = ct.convert(trained(Scaled()), fuse=True), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        before = fused(x, 2.0)
        assert {id(p) for p in fused.parameters()} == {id(p) for p in ct.convert(fused).parameters()}
        for p in fused.parameters():
            p.data.mul_(1.5)
        right(fused, fused, x, 2.0)
        assert error(fused(x, 2.0), before) > 0.1


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
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Frozen(), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.ReLU()).eval()
    fused, x = ct.convert(model, fuse=True), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        for _ in range(3):
            right(fused, model, x)
            for each in (model, fused):
                each.get_buffer("1.variance").mul_(2)


def test_numbers_of_another_type_are_as_the_models_own():
    model = Body(
        lambda m, x: m.last((m.conv(x) * m.factor).mean((2, 3))), conv=nn.Conv2d(3, 4, 3), last=nn.Linear(4, 2)
    )
    model.register_buffer("factor", torch.tensor(3.0, dtype=torch.float64))
    model, x = model.eval(), torch.randn(2, 3, 6, 6)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        alike(fused(x), model(x))
        assert "convolutions" in forms(fused)[0]
        flat = [nn.Flatten(), nn.Linear(108, 4), nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 4, 1)]
        for layers in ([model.conv], flat):
            whole = nn.Sequential(*layers).eval()
            with pytest.raises(RuntimeError):
                ct.convert(whole, fuse=True)(x.double())  # answered NaN
