"""What compiled models are given and what they answer: as the model itself, also where tensors share memory."""

import collections
import copy
import gc
import threading

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_checks import alike, error, forms, right
from torch_small import Body

import convdispatch.torch as ct
from convdispatch.torch.graph import constants, inductor
from convdispatch.torch.graph.engine_choice import Race
from convdispatch.torch.graph.forms import GraphForms

nn, F = torch.nn, torch.nn.functional
SCALES = {6: 2.0}
ARRAY = np.ones(1)
AVAILABLE = inductor.available  # which the module's fixture hides
pytestmark = pytest.mark.usefixtures("without_compiler")


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


# --- weights that change --------------------------------------------------------------------------------------------


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
    model = Net().eval().requires_grad_(False)
    fused = ct.convert(model, fuse=True) if door == "convert" else compiled(model)
    changed, x = fused if door == "convert" else model, picture()
    with torch.no_grad():
        fused(x)
        fused(x)
        torch.manual_seed(1)
        CHANGES[name](changed)
        plain = Net().eval()
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
