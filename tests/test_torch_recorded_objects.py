"""Objects that recorded models answer, as transformers' caches: made anew where nobody else knows them."""

from __future__ import annotations

import collections
import contextvars
import copy
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from test_torch_fused_graphs import graphs, why  # noqa: E402, F401 (torch is asked for first)
from test_torch_fused_graphs import net as sequence  # noqa: E402
from torch_checks import error  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch.torch.fusion import python_state  # noqa: E402
from convdispatch.torch.fusion.answers import opened  # noqa: E402

nn = torch.nn
KEPT = contextvars.ContextVar("KEPT")  # which no look at globals opens


class Layer:
    kind = "keys"

    def __init__(self):
        self.keys, self.sizes, self.device, self.of = None, {0: 1, "all": None}, None, Layer

    def update(self, keys):
        if self.keys is None:
            self.keys = torch.tensor([])
        self.keys = torch.cat([self.keys, keys], -2)
        self.device, self.sizes["all"] = keys.device, keys.shape[-2]
        return self.keys


class Cache:
    def __init__(self, *layers):
        self.layers, self.used = list(layers), (0, True)

    def size(self):
        return sum(layer.keys.shape[-2] for layer in self.layers)


class Slotted:
    __slots__ = ("__dict__", "y")


class Reduced(Cache):
    def __reduce__(self):
        return Cache, ()


class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), body
        self.own = Cache()

    def forward(self, *args):
        if len(args) > 9:
            raise TypeError("too many")
        return self.body(self, *args)


def picture(seed=0):
    return torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def cached(m, x):
    cache = Cache(Layer(), Layer())
    y = cache.layers[0].update(m.conv(x))
    buffer = torch.zeros(1, 4, 6, 6)
    buffer.copy_(m.last(y))
    cache.layers[1].update(buffer * torch.ones_like(buffer))
    cache.last = buffer
    return {"y": buffer, "cache": cache}


def test_an_object_is_made_anew():
    net = Net(cached).eval()
    fused, seen = ct.convert(net, fuse=True), []
    for seed in range(3):
        with torch.no_grad():
            got, wanted = fused(picture(seed)), net(picture(seed))
        cache = got["cache"]
        assert type(cache) is Cache
        assert (cache.used, cache.size()) == ((0, True), wanted["cache"].size())
        for one, other in zip(cache.layers, wanted["cache"].layers, strict=True):
            assert type(one) is Layer
            assert vars(one).keys() == vars(other).keys()
            assert (one.sizes, one.device, one.of, one.kind) == (other.sizes, other.device, Layer, "keys")
            assert error(one.keys, other.keys) < 1e-5
        assert cache.last is got["y"]
        seen += [cache, cache.layers, *cache.layers, cache.layers[0].sizes]
        cache.layers[0].sizes[0] = 5  # is its owner's
        cache.layers[0].update(torch.ones(1, 8, 1, 6))
        copy.deepcopy(cache)
    assert len({id(each) for each in seen}) == len(seen)
    form = ct.fusion(fused).forms["the model, 1x3x6x6"]
    assert "2 convolutions" in form, form


def kept(m, x):
    cache = cached(m, x)
    KEPT.set([cache["cache"].layers])
    return cache


def watched(m, x):
    cache = cached(m, x)["cache"]
    KEPT.set([weakref.ref(cache)])
    return m.last(m.conv(x)), cache


def twice(m, x):
    cache = cached(m, x)["cache"]
    cache.layers[1] = cache.layers[0]
    return m.last(m.conv(x)), cache


def of_kind(kind):
    def body(m, x):
        made = kind()
        made.y = m.last(m.conv(x))
        return made.y, made

    return body


def model_within(m, x):
    cache = cached(m, x)["cache"]
    cache.net = nn.ReLU()
    return m.last(m.conv(x)), cache


REFUSED = {
    "kept": kept,
    "watched": watched,
    "twice": twice,
    "of the model": lambda m, x: (m.last(m.conv(x)), m.own),
    "slots": of_kind(Slotted),
    "pickled by a way of its own": of_kind(Reduced),
    "a list of its own kind": of_kind(type("Many", (list,), {})),
    "a deque": of_kind(type("Late", (collections.deque,), {})),
    "a layer": model_within,
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_object_that_others_know_or_that_is_more_than_its_fields(name):
    net = Net(REFUSED[name]).eval()
    fused = ct.convert(net, fuse=True)
    for seed in range(2):
        with torch.no_grad():
            got, wanted = fused(picture(seed)), net(picture(seed))
        one, other = (each["y"] if isinstance(each, dict) else each[0] for each in (got, wanted))
        assert error(one, other) < 1e-5
    form = ct.fusion(fused).forms["the model, 1x3x6x6"]
    assert "it answers a" in form, form
    KEPT.set([])


def test_what_needs_no_opening_is_as_it_was():
    x, cache = picture(), Cache()
    assert opened(lambda: (x, 1, None))[0] is x
    assert opened(lambda: cache) is cache
    assert type(opened(lambda: (Cache(), 1))[0]).__name__ == "_Opened"


def marks(m, x):
    """As Keras's softmax marks its answer with the logits that it was made of."""
    logits = m.last(m.conv(x))
    logits.mask = None
    y = logits.softmax(1)
    y.logits, y.words = logits, {"of": [logits * 2, 3]}
    return y


def test_attributes_of_tensors_are_given_again():
    net = Net(marks).eval()
    fused, seen = ct.convert(net, fuse=True), []
    for seed in range(3):
        with torch.no_grad():
            got, wanted = fused(picture(seed)), net(picture(seed))
        assert vars(got).keys() == vars(wanted).keys() == {"logits", "words"}
        assert vars(got.logits) == {"mask": None}
        assert got.words["of"][1] == 3
        for one, other in ((got, wanted), (got.logits, wanted.logits), (got.words["of"][0], wanted.words["of"][0])):
            assert error(one, other) < 1e-5
        seen += [got, got.logits, got.words, got.words["of"]]
    assert len({id(each) for each in seen}) == len(seen)
    form = ct.fusion(fused).forms["the model, 1x3x6x6"]
    assert "2 convolutions" in form, form


def test_an_attribute_that_cannot_be_given_again():
    def body(m, x):
        y = m.last(m.conv(x))
        y.of = m.own
        return y

    net = Net(body).eval()
    fused = ct.convert(net, fuse=True)
    with torch.no_grad():
        assert fused(picture()).of is fused.own
    assert "attributes of Python's" in ct.fusion(fused).forms["the model, 1x3x6x6"]


def test_a_call_that_is_given_an_object_says_why_it_is_not_recorded():
    def body(m, x, cache=None, by=1.0):
        y = m.last(m.conv(x)) * by
        return y if cache is None else y + cache.layers[0].update(m.conv(x)).mean()

    net = Net(body).eval()
    fused = ct.convert(net, fuse=True)
    mine, theirs = Cache(Layer()), Cache(Layer())
    with torch.no_grad():
        for seed in range(3):
            assert error(fused(picture(seed), mine), net(picture(seed), theirs)) < 1e-5
        for by in range(5):
            fused(picture(), None, 0.5 + by)
        marked = picture()
        marked.mark = 1
        fused(marked)
    assert mine.size() == theirs.size()  # its owner's, and written at each call
    forms = ct.fusion(fused).forms.items()
    said = {shapes: form for shapes, form in forms if shapes.startswith("the model, 1x3x6x6, given")}
    assert len(said) == 3, ct.fusion(fused)
    assert "may change such an object" in said["the model, 1x3x6x6, given a Cache"]
    assert "2 values" in said["the model, 1x3x6x6, given other numbers"]
    assert "it runs by layers" in said["the model, 1x3x6x6, given a tensor with attributes of Python's"]


def sharing(m, x):
    y = m.last(m.conv(x))
    first, second = y.permute(0, 2, 3, 1).chunk(2, -1)
    more = {"again": second, "other": y.mul(2), "flat": m.conv(x)[:, 1]}
    return {"first": first, "second": second, "row": first[:, 0], **more}


def test_answers_that_share_memory_share_it():
    net = Net(sharing).eval()
    fused = ct.convert(net, fuse=True)
    for seed in range(3):
        with torch.no_grad():
            got, wanted = fused(picture(seed)), net(picture(seed))
            for answer in (got, wanted):
                answer["first"].mul_(2)
                answer["second"][:, 1:3] = 3.0
                answer["row"] += 1
        assert got["again"] is got["second"]
        for name in wanted:
            assert error(got[name], wanted[name]) < 1e-5
    form = ct.fusion(fused).forms["the model, 1x3x6x6"]
    assert "3 convolutions" in form, form


def parted(self, x):
    """Parts of one tensor, of which one is moved, and another tensor."""
    y = nn.Sequential.forward(self, x)
    first, second = y.chunk(2, 1)
    return first.permute(0, 2, 3, 1), second[:, :, 1:], y.sum(1)


@pytest.mark.parametrize("on", ["cpu", "a gpu"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parts_of_one_tensor_share_memory(request, mode, on):
    made = request.getfixturevalue("graphs") if on == "a gpu" else None
    plain, fused = sequence(forward=parted)
    with mode():
        for turn in range(5):
            got, wanted = fused(picture(turn)), plain(picture(turn))
            for answers in (got, wanted):
                assert answers[0].untyped_storage()._cdata == answers[1].untyped_storage()._cdata
                answers[0].mul_(2)
                answers[1].as_strided(answers[0].shape, answers[0].stride(), 0).add_(1)
            for one, other in zip(got, wanted, strict=True):
                assert error(one, other) < 1e-5
                assert one.is_inference() == other.is_inference()
    assert ("a CUDA graph" if made else "commands") in why(fused)


def test_what_reads_too_much_says_so(monkeypatch):
    monkeypatch.setattr(python_state, "_MOST", 3)
    net = Net(lambda m, x: m.last(m.conv(x))).eval()
    fused = ct.convert(net, fuse=True)
    with torch.no_grad():
        assert error(fused(picture()), net(picture())) < 1e-5
    assert "more than a look is worth" in ct.fusion(fused).forms["the model, 1x3x6x6, reading many values"]
