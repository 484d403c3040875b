"""Whole models under enable(): a zoo built by hand, trained and run, each call counted; explain and report."""

import pytest
import torch
import torch_zoo as zoo

import convdispatch.torch as ct
from convdispatch.torch.dispatch import engine
from convdispatch.torch.dispatch.routing import settings_in_force

pytestmark = pytest.mark.usefixtures("counted")


def convolutions(model) -> int:
    return sum("Conv" in type(module).__name__ for module in model.modules())


@pytest.mark.parametrize("name", [*zoo.ZOO, *zoo.LARGE])
def test_a_net_trains_and_runs(name, full):
    if name in zoo.LARGE and not full:
        pytest.skip("with --full")
    make, shape = (zoo.ZOO | zoo.LARGE)[name]
    model, x = make(), torch.randn(shape)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def trained(model, x):
        model.load_state_dict(state)
        model.train().zero_grad()
        y = model(x)
        y.square().mean().backward()
        model.eval()
        with torch.inference_mode():
            return y.detach(), model(x), *(p.grad.clone() for p in model.parameters())

    double = make().double()
    for module in double.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected, plain = trained(double, x.double()), trained(model, x)
    with ct.enable(solver="im2col*"):
        got = trained(model, x)
    calls = convolutions(model)
    assert (ct.counters()["ours"], ct.counters()["left"]) == (3 * calls, 0), ct.counters()
    for mine, theirs, exact in zip(got, plain, expected):
        scale = exact.norm().clamp_min(1e-12)
        reference = float((theirs.double() - exact).norm() / scale)
        assert float((mine.double() - exact).norm() / scale) <= max(1e-4, 10 * reference)


def test_explain_tells_of_every_layer(tmp_path):
    model, x = zoo.ZOO["unet"][0](), torch.randn(2, 3, 16, 20)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    found = ct.explain(model, x)
    assert [layer.name for layer in found.layers] == ["first.0", "down.0", "up", "last"]
    for layer in found.layers:
        assert layer.solver.split(".")[0] in layer.why
        assert layer.error < 1e-5
        assert layer.torch_error < 1e-5
        assert layer.ms > 0
        assert layer.torch_ms > 0
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in state.items()), "statistics stay"
    model.requires_grad_(False)  # its weights are packed once
    assert all(layer.error < 1e-5 for layer in ct.explain(model, x).layers)
    assert found.layers[0].solver in str(found)
    assert len(found.to_dict()["layers"]) == 4
    page = ct.report(model, x, path=tmp_path / "page.html").read_text()
    assert all(layer.name in page and layer.problem in page for layer in found.layers)
    with ct.enable(math="ieee"):
        ct.explain(model, x)
        assert settings_in_force().math == "ieee", "what was in force stays"
    with ct.enable(min_flops=1e5):
        kept = ct.explain(model, x)
    assert [layer.solver is None for layer in kept.layers] == [False, False, True, True]
    assert "min_flops" in str(kept)
    assert not model._forward_hooks


def test_prepare_makes_ready_what_a_step_asks_for(monkeypatch):
    unet, x = zoo.ZOO["unet"][0](), torch.randn(2, 3, 16, 20)  # with a transposed convolution, batch norms
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), unet)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    with ct.enable():
        ready = ct.prepare(model, x)
        with torch.inference_mode():
            frozen = ct.prepare(model, x)
    assert (ready["ours"], ready["left"]) == (11, 0), "four layers; the first has no gradient of its images"
    assert (frozen["ours"], frozen["left"]) == (4, 0)
    assert ct.counters()["ours"] == ct.counters()["left"] == 0, "nothing of ours ran"
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in state.items())
    assert all(each.grad is None for each in model.parameters())

    monkeypatch.setattr(
        engine, "planned_call", lambda asked: pytest.fail(f"{asked.part} of {asked.x.shape} was not ready")
    )
    with ct.enable():
        model(x).sum().backward()
        with torch.inference_mode():
            model(x)
    assert (ct.counters()["ours"], ct.counters()["left"]) == (4 + 4 + 4, 0)
    monkeypatch.undo()
    with ct.enable(min_flops=1e5):
        some = ct.prepare(model, x)
    assert 0 < some["left"] < 11
    assert some["reasons"] == {"fewer than min_flops=100000 operations": some["left"]}
