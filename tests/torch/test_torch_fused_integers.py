"""Integers and masks that fused models are given, and places that they compute."""

import pytest
import torch
from torch_checks import alike, error, forms
from torch_small import Body

import convdispatch.torch as ct

pytestmark = pytest.mark.usefixtures("without_compiler")
nn, F = torch.nn, torch.nn.functional
FAKE = torch._subclasses.FakeTensor


def both(body, wide=False):
    """Layers that ``body`` uses on what it is given, and the same fused."""
    torch.manual_seed(0)
    net = Body(
        body, words=nn.Embedding(20, 4, padding_idx=0), codes=nn.Embedding(30, 4), conv=nn.Conv1d(4, 8, 3, padding=1),
        last=nn.Conv1d(8, 4, 1),
    ).eval()  # fmt: skip
    net = net.double() if wide else net
    return net, ct.convert(net, fuse=True)


def ids(seed=0):
    return torch.randint(0, 20, (2, 9), generator=torch.Generator().manual_seed(seed))


def numbers(seed=0):
    return torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(seed))


def check(fused, net, *args):
    with torch.no_grad():
        got = fused(*args)
        alike(got, net(*args))
    return got


def of_words(m, x):
    return m.last(F.relu(m.conv(m.words(x).transpose(1, 2)))).amax(2)


def test_words_are_looked_up_before_the_form():
    net, fused = both(of_words)
    for seed in range(3):
        check(fused, net, ids(seed))
    assert "2 convolutions" in forms(fused)[0], forms(fused)
    for wrong in (20, -1):
        with pytest.raises(IndexError), torch.no_grad():
            fused(torch.full((2, 9), wrong))
    with torch.no_grad():
        for each in (net, fused):
            each.words.weight.mul_(2)
    check(fused, net, ids())
    assert not forms(fused)
    check(fused, net, ids())
    assert "2 convolutions" in forms(fused)[0], forms(fused)


def test_words_of_a_net_of_doubles():
    net, fused = both(lambda m, x: m.last(m.words(x).transpose(1, 2).repeat(1, 2, 1)), wide=True)
    check(fused, net, ids())
    assert "1 convolutions" in forms(fused)[0], forms(fused)


def masked(m, x, words, mask):
    seen = mask[:, None].float()
    y = m.conv(x * seen + m.words(words).transpose(1, 2))
    return {"y": m.last(y + (1 - seen) * -3), "next": words + 1, "words": words, "mask": mask, "all": mask.all(1)}


def test_masks_and_answers_of_integers():
    net, fused = both(masked)
    for seed in range(3):
        check(fused, net, numbers(seed), ids(seed), ids(seed) > 4)
    with torch.no_grad():
        given = ids()
        assert fused(numbers(), given, given > 4)["words"] is given
    assert [each for each in forms(fused) if "2 convolutions" in each], forms(fused)


def test_bytes_become_numbers_before_the_form():
    net, fused = both(lambda m, x: m.last(m.conv(x.float() / 255 - 0.5)))
    x = torch.randint(0, 256, (1, 4, 9), dtype=torch.uint8)
    check(fused, net, x)
    assert "2 convolutions" in forms(fused)[0]


def extremes(m, x):
    y = m.last(m.conv(x)).transpose(1, 2)
    most, where = y.max(dim=-1, keepdim=True)
    whole = y.argmax().view(1), y.argmin(2, keepdim=True).squeeze(2).unsqueeze(0), y.max(), y.min(1)[0]
    return most, where, whole, y.argmin(1).view(2, -1)


def test_places_of_extremes():
    net, fused = both(extremes)
    for seed in range(3):
        check(fused, net, numbers(seed))
    assert "2 convolutions" in forms(fused)[0], forms(fused)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda m, x: m.last(m.conv(x)).argmax(1) + 1, "takes places"),
        (lambda m, x: m.words(m.last(m.conv(x)).argmax(1)), "aten.embedding.default has no counterpart here"),
        (lambda m, x: torch.cdist(m.last(m.conv(x)), m.last(m.conv(x))), "has no counterpart here"),
        (lambda m, x: m.last(m.conv(x)) * m.last(m.conv(x)).argmax(1, True), "takes places"),
        (lambda m, x: m.words(m.last(m.conv(x)).long().clamp(0, 1)), "_to_copy"),
    ],
)
def test_places_are_no_numbers(body, why):
    net, fused = both(body)
    check(fused, net, numbers())
    assert why in forms(fused)[0]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda m, x, words: m.last(m.conv(x)) * words[:, None], "meets numbers"),
        (lambda m, x, words: (m.last(m.conv(x)), words.view(-1)), "2 convolutions"),
        (lambda m, x, words: (m.last(m.conv(x)), words.add_(1).sum())[:1], "2 convolutions"),
        (lambda m, x, words: m.last(m.conv(x)) if words.sum() > 3 else m.conv(x), "graph break"),
    ],
)
def test_integers_beside_what_a_form_computes(body, what):
    net, fused = both(body)
    for seed in range(2):
        with torch.no_grad():
            one, other = ids(seed), ids(seed)
            got, wanted = fused(numbers(), one), net(numbers(), other)
        assert error(*(each[0] if isinstance(each, tuple) else each for each in (got, wanted))) < 1e-5
        assert torch.equal(one, other)
        if isinstance(got, tuple) and len(got) > 1:
            assert torch.equal(got[1], wanted[1])
            assert got[1].data_ptr() == one.data_ptr(), "a view of an input"
    assert what in str(ct.fusion(fused))


def test_code_that_asks_whether_it_is_traced():
    """As transformers' masks: where they are not fake, whether all is seen decides that nothing is masked."""

    def body(m, x):
        mask = torch.ones(x.shape[2:])
        y = m.last(m.conv(x))
        return y * mask if isinstance(mask, FAKE) or not mask.all() else y

    net, fused = both(body)
    check(fused, net, numbers())
    assert any("2 convolutions" in each for each in forms(fused)), forms(fused)
