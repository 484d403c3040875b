"""Weights under enable(): packed once, again when they change, dropped when they go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import error  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("counted")
F = torch.nn.functional


def test_constant_weights_are_packed_once_and_again_when_they_change(monkeypatch):
    packed = []
    from convdispatch.selection.prepared import Constant

    own = Constant.packed
    monkeypatch.setattr(Constant, "packed", lambda self, *rest: packed.append(self) or own(self, *rest))
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # for both sizes of the layer
    x, layer = torch.randn(1, 64, 16, 16), torch.nn.Conv2d(64, 64, 3, padding=1)  # any processor packs them
    with ct.enable(), torch.inference_mode():
        for change in (None, lambda w: w.mul_(2), lambda w: w.copy_(torch.randn_like(w))):
            if change:
                with torch.inference_mode(False), torch.no_grad():
                    change(layer.weight)
            for _ in range(3):
                y = layer(x)
            assert error(y, F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
        assert y.is_inference()
        with torch.inference_mode(False), torch.no_grad():
            layer.weight.data = torch.randn_like(layer.weight)
        assert error(layer(x), F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
    assert len({id(each) for each in packed}) == 4, "packed by version and address"
    packed.clear()
    with ct.enable(), torch.no_grad():
        layer(x)
        layer.weight.data.mul_(2)
        assert error(layer(x), F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
    assert not packed
    other = torch.randn(1, 64, 15, 16)
    with ct.enable():
        layer.requires_grad_(False)(other)
    assert packed
    assert ct.counters()["left"] == 0


def test_weights_that_go_take_their_packed_forms_along():
    import gc
    import weakref

    from convdispatch.torch import weights

    layer = torch.nn.Conv2d(8, 8, 3).requires_grad_(False)
    with ct.enable():
        layer(torch.randn(1, 8, 8, 8))
    key, held = id(layer.weight), weakref.ref(weights._seen[id(layer.weight)].packed.__class__)
    del layer
    gc.collect()
    assert key not in weights._seen
    assert held


def test_weights_made_anew_each_time_are_not_constant():
    x, scale = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
    with ct.enable(), torch.inference_mode():
        for factor in range(1, 5):
            w = scale * factor
            assert error(F.conv2d(x, w), F.conv2d(x.double(), w.double())) < 1e-5
