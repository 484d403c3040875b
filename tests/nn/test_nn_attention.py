"""Scaled dot-product attention in one kernel: against float64, with masks, hostile scales, strides and odd sizes."""

import numpy as np
import pytest

from convdispatch.api.errors import InvalidArgument
from convdispatch.inference import build
from convdispatch.nn import attention as module
from convdispatch.nn import functional
from convdispatch.tensor import Tensor


def expected(q, k, v, mask=None, causal=False, scale=None):
    """In float64; rows whose scores are all -inf are zeros."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isneginf(most), 0, most))
    total = p.sum(-1, keepdims=True)
    return p @ v / np.where(total == 0, 1, total)


def drawn(shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def operands(mb, heads, queries, keys, size, values, scale=1.0):
    return (
        drawn((mb, heads, queries, size), 1, scale),
        drawn((mb, heads, keys, size), 2, scale),
        drawn((mb, heads, keys, values), 3),
    )


def computed(q, k, v, mask=None, **more):
    given = [Tensor.from_numpy(a) if isinstance(a, np.ndarray) else a for a in (q, k, v, mask)]
    return functional.attention(*given, **more).numpy()


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


# Few sizes of a query and a value: each is a program, places of any number share it.
SIZES = [(2, 3, 5, 7, 8, 8), (1, 2, 50, 65, 8, 8), (2, 1, 97, 130, 8, 8), (1, 1, 300, 1000, 8, 8), (1, 8, 17, 64, 8, 8)]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (1, 2, 20, 30, 33, 9)], ids=str)
def test_any_size_of_a_query_and_a_value(sizes):
    given = operands(*sizes)
    assert error(computed(*given), expected(*given)) < 3e-6


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "key mask", "mask of a head"])
def test_against_float64(sizes, kind):
    mb, heads, queries, keys, *_ = sizes
    q, k, v = operands(*sizes)
    mask = {
        "masked": (mb, heads, queries, keys),
        "key mask": (mb, 1, 1, keys),
        "mask of a head": (heads, queries, 1),
    }.get(kind)
    if mask is not None:
        mask = drawn(mask, 4, 3.0)
        if kind == "masked":
            mask[np.random.default_rng(5).random(mask.shape) < 0.3] = -np.inf
    want = expected(q, k, v, mask, kind == "causal")
    assert error(computed(q, k, v, mask, causal=kind == "causal"), want) < 3e-6


@pytest.mark.parametrize(("lanes", "vectors"), [(8, 1), (8, 3), (16, 2), (16, 3)])
def test_each_form_of_the_kernel(monkeypatch, vectors, lanes):
    """Which of them is taken depends on the device."""
    monkeypatch.setattr(module, "_vectors", lambda *_: vectors)
    monkeypatch.setattr(module, "_lanes", lambda *_: lanes)
    q, k, v = operands(1, 2, 61, 75, 8, 8)
    mask = np.where(np.tri(61, 75, 7, dtype=bool), 0, -np.inf).astype(np.float32)
    assert error(computed(q, k, v, mask), expected(q, k, v, mask)) < 3e-6


def test_scores_of_hostile_scales():
    """Where scores are 1e4 apart one key has all; float32 scores have an error of 1e-3 there, as any have."""
    q, k, v = operands(1, 2, 40, 200, 8, 8, 120.0)
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) * 8**-0.5
    assert np.abs(scores).max() > 1e4
    top = np.sort(scores, -1)
    clear = top[..., -1] - top[..., -2] > 20  # rows where rounding cannot matter
    assert clear.mean() > 0.5
    got, want = computed(q, k, v), expected(q, k, v)
    assert error(got[clear], want[clear]) < 3e-6
    small = operands(1, 2, 40, 200, 8, 8, 1e-25)
    assert error(computed(*small), expected(*small)) < 3e-6
    wide = (q / 120, k / 120, v * np.float32(2.0**100))
    assert error(computed(*wide), expected(*wide)) < 3e-6


def test_rows_that_see_nothing_and_rows_that_see_the_least():
    q, k, v = operands(1, 2, 20, 70, 8, 8)
    mask = np.zeros((20, 70), np.float32)
    mask[3] = -np.inf  # nothing: zeros, as PyTorch
    mask[4] = np.finfo(np.float32).min  # all alike: the mean
    mask[5, 5:] = -np.inf
    mask[6, :66] = -np.inf  # a whole tile before the first that is seen
    got = computed(q, k, v, mask)
    assert (got[:, :, 3] == 0).all()
    assert error(got[:, :, 4], v.mean(2)) < 3e-6
    others = [row for row in range(20) if row != 4]  # float64 holds that scores differ beside 3e38
    assert error(got[:, :, others], expected(q, k, v, mask)[:, :, others]) < 3e-6


def test_what_is_no_number_stays_in_its_row():
    q, k, v = operands(1, 1, 40, 70, 8, 8)
    mask = np.zeros((40, 70), np.float32)
    mask[1, 65], mask[2, 3] = np.inf, np.nan
    got = computed(q, k, v, mask)
    assert np.isnan(got[0, 0, [1, 2]]).all()
    assert np.isfinite(np.delete(got, [1, 2], 2)).all()


def test_views_are_read_as_they_lie():
    """Heads beside each other in a row, as models have them; keys turned; nothing beside them is read."""
    all_of = drawn((2, 30, 3 * 4 * 8 + 5))
    whole = Tensor.from_numpy(all_of)
    q, k, v = (
        Tensor(whole.base_data, (2, 4, 30, 8), whole.dtype, whole.queue, (30 * 101 * 4, 32, 101 * 4, 4), 128 * i + 8)
        for i in range(3)
    )
    parts = [all_of[:, :, 2 + 32 * i : 34 + 32 * i].reshape(2, 30, 4, 8).swapaxes(1, 2) for i in range(3)]
    assert error(functional.attention(q, k, v).numpy(), expected(*parts)) < 3e-6
    turned = Tensor.from_numpy(np.ascontiguousarray(parts[1].swapaxes(2, 3))).transpose(0, 1, 3, 2)
    assert error(functional.attention(q, turned, v).numpy(), expected(*parts)) < 3e-6


def test_a_last_block_writes_no_further():
    """Of 50 queries, whose blocks are 16, 32 or 48: between guard zones."""
    q, k, v = map(Tensor.from_numpy, operands(1, 1, 50, 20, 8, 8))
    launch = module._kernel_for(q, k, v, None, False, 1.0)
    if launch is None:
        pytest.skip("the device has no kernel of attention")
    zone = 4096
    y = Tensor.from_numpy(np.full(50 * 8 + zone, 7, np.float32))
    launch(q.queue, [a for t in (q, k, v, q) for a in (t.base_data, np.int64(0))] + [y.base_data])
    got = y.numpy()
    assert (got[400:] == 7).all()
    assert (got[:400] != 7).all()


def test_without_the_kernel_it_is_products_and_a_softmax(monkeypatch):
    q, k, v = operands(2, 2, 9, 11, 8, 5)
    mask = np.where(np.tri(9, 11, -1, dtype=bool), 0, -np.inf).astype(np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_kernel_for", lambda *_: None)
        for more in ({"mask": mask}, {"causal": True}, {"scale": 0.3}):
            assert error(computed(q, k, v, **more), expected(q, k, v, **more)) < 1e-5
    wide = [a.astype(np.float64) for a in (q, k, v)]
    assert error(computed(*wide, causal=True), expected(*wide, causal=True)) < 1e-12


def test_in_a_form():
    q, k, v = operands(2, 2, 40, 50, 8, 8)
    net = build(lambda q, k, v: functional.attention(q, k, v, causal=True), q.shape, k.shape, v.shape)
    for _ in range(2):
        assert error(net(q, k, v), expected(q, k, v, causal=True)) < 3e-6


def test_shapes_that_do_not_fit():
    q, k, v = map(Tensor.from_numpy, operands(1, 2, 5, 6, 4, 3))
    for given in ((q, k[:, :1], v), (q, k, v[:, :, :5]), (q[0], k[0], v[0]), (q[..., :3], k, v)):
        with pytest.raises(InvalidArgument, match="attention takes q"):
            functional.attention(*given)
    empty = functional.attention(q, k[:, :, :0], v[:, :, :0])
    assert empty.shape == (1, 2, 5, 3)
    assert (empty.numpy() == 0).all()
