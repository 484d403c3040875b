"""What is kept of a choice of forms: when it is built alone, and when forms are timed anew."""

import numpy as np
import pytest
import small_net

from convdispatch import inference
from convdispatch.api import policy
from convdispatch.device.cache import keys, store
from convdispatch.device.runtime import device_info
from convdispatch.inference import choice_cache, form_benchmark
from convdispatch.selection import decision_store
from convdispatch.selection.plugins.loader import plugins


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """An empty store of decisions."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    decision_store.forget()
    yield tmp_path
    decision_store.forget()


def replace_forms(value):
    """Every choice becomes another value, or vanishes; the next process reads it."""
    files = list(store.FORMS.folder().glob("*.forms"))
    for file in files:
        store.FORMS.put(file.stem, value)
    decision_store.forget()
    return files


@pytest.fixture
def net(queue):
    made = small_net.net(queue)
    made.eval()
    return made


def picture(mb):
    return small_net.normal(mb, 3, 13, 13)


@pytest.mark.usefixtures("all_forms")
def test_a_choice_that_is_recalled_builds_one_form(net, folder, monkeypatch):
    """For the same net, device and records; a file that is damaged, and a policy in force, time all forms again."""

    monkeypatch.setattr(form_benchmark, "_alone", lambda form, n: [1.0 if form.layout == "nhwc" else 2.0] * n)
    x = picture(1)
    first = inference.build(net, x.shape, recall=True)
    assert len(first.tried) >= 2
    again = inference.build(net, x.shape, recall=True)
    assert len(again.tried) == 1
    assert again.layout == first.layout
    np.testing.assert_array_equal(again(x), first(x))
    assert len(inference.build(net, (2, 3, 13, 13), recall=True).tried) >= 2
    with policy(deterministic=True):
        assert len(inference.build(net, x.shape, recall=True).tried) >= 2
    for value in ({"layout": "sideways", "votes": 2}, {"layout": "nhwc", "votes": 1.5}, None):
        for file in replace_forms(value):
            if value is None:
                file.write_bytes(file.read_bytes()[:-1])
        assert len(inference.build(net, x.shape, recall=True).tried) >= 2


@pytest.mark.usefixtures("all_forms")
def test_what_was_measured_under_load_does_not_stay(net, folder, monkeypatch):
    """One noisy measurement settles nothing, two that agree do for a while, two that differ do not; a calm one does."""

    ms = {"nchw": [1.0, 9.0, 9.0], "nhwc": [2.0, 9.0, 9.0]}
    monkeypatch.setattr(form_benchmark, "_alone", lambda form, n: ms[form.layout])
    shape = (1, 3, 13, 13)

    def built():
        form = inference.build(net, shape, recall=True)
        return form.layout, len(form.tried) > 1

    assert [built() for _ in range(2)] == [("nchw", True)] * 2
    assert [built() for _ in range(choice_cache.NOISY_RECALLS)] == [("nchw", False)] * choice_cache.NOISY_RECALLS
    ms["nchw"][0] = 4.0  # it was wrong
    assert [built() for _ in range(2)] == [("nhwc", True)] * 2
    assert built() == ("nhwc", False)
    ms["nchw"], ms["nhwc"] = [1.0] * 3, [2.0] * 3
    store.FORMS.clear()
    assert [built() for _ in range(20)] == [("nchw", True)] + [("nchw", False)] * 19


@pytest.mark.parametrize(
    "value",
    [{}, {"layout": []}, {"layout": None, "votes": 1e9}, {"sideways": 1}, {"layout": None, "votes": "1"}],
    ids=str,
)
def test_a_damaged_entry_is_none(queue, value):
    key = decision_store.key(device_info(queue.device), "key")
    store.FORMS.put(key, value)
    assert choice_cache.load(key) is None


@pytest.mark.usefixtures("all_forms")
def test_a_choice_ends_with_the_kernels_that_it_was_made_for(net, tmp_path, monkeypatch):

    monkeypatch.setattr(form_benchmark, "_alone", lambda form, n: [1.0] * n)
    module = plugins().manager.get_plugin("im2col")
    kernel = tmp_path / "im2col" / "a.cl"
    kernel.parent.mkdir()
    kernel.write_text("kernel")
    monkeypatch.setattr(module, "__path__", [str(tmp_path / "im2col")])

    def forms():
        keys.stamp.cache_clear()
        decision_store.forget()
        return len(inference.build(net, (1, 3, 13, 13), recall=True).tried)

    assert [forms() > 1, forms() > 1] == [True, False]
    kernel.write_text("another kernel")
    assert [forms() > 1, forms() > 1] == [True, False]
    keys.stamp.cache_clear()


@pytest.mark.parametrize(
    ("series", "best", "agreed"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], 0, True),
        ([[1.0, 2.0], [1.9, 1.5]], 0, False),
        ([[1.0, 1.01], [1.02, 1.01]], 1, True),  # as good as one: the favourite stays
        ([[1.0, 1.1], [1.0, 1.1]], 0, True),
    ],
)
def test_two_series_agree_or_not(monkeypatch, series, best, agreed):

    taken = iter(series)
    monkeypatch.setattr(form_benchmark, "_alone", lambda form, n: [1.0])
    monkeypatch.setattr(form_benchmark, "_series", lambda *_: [[ms] for ms in next(taken)])
    verdict = form_benchmark.benchmark_forms(["a", "b"], favourite=1)
    assert (verdict.best, verdict.agreed) == (best, agreed)
