"""``batch_invariant`` through PyTorch's doors: eager calls under ``enable()``, and graphs of the back end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import convdispatch.torch as ct  # noqa: E402
from convdispatch.api.errors import InvalidArgument, InvalidPolicy  # noqa: E402
from convdispatch.api.policy import Policy, policy  # noqa: E402
from convdispatch.torch import settings  # noqa: E402
from convdispatch.torch.compile.backend import Backend  # noqa: E402

pytestmark = pytest.mark.computes

WHOLE = 9
PARTS = ((1, 8), (5, 1))


def model(activation: type[torch.nn.Module] = torch.nn.ReLU) -> torch.nn.Module:
    """PyTorch's own SiLU computes the end of its memory with other bits: eager models here have none."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(5, 24, 3, padding=1), activation(), torch.nn.Conv2d(24, 17, 3, stride=2), torch.nn.ReLU()
    ).eval()


def differing(compute, x: torch.Tensor) -> int:
    whole, wrong = compute(x), 0
    for images, start in PARTS:
        part = compute(x[start : start + images].clone())
        wrong += sum(not torch.equal(part[i], whole[start + i]) for i in range(images))
    return wrong


@pytest.fixture
def images():
    return torch.randn(WHOLE, 5, 11, 9, generator=torch.Generator().manual_seed(1))


def test_eager_calls_and_gradients(images):
    net = model()

    def gradient(x):
        x = x.clone().requires_grad_()
        net(x).square().sum().backward()
        return x.grad

    ct.reset_counters()
    with ct.enable(batch_invariant=True):
        with torch.inference_mode():
            assert differing(net, images) == 0
        assert differing(gradient, images) == 0
    assert not ct.counters()["left"]


@pytest.mark.parametrize("engine", ["form", "operators", None])
def test_graphs(images, engine, full):
    """A form has an activation of ours; on a CPU no graph is inductor's, which races it otherwise."""
    if engine is not None and not full:
        pytest.skip("takes long: run with --full")
    options = {"batch_invariant": True} | ({"engine": engine} if engine else {})
    net = model(torch.nn.ReLU if engine == "operators" else torch.nn.SiLU)
    compiled = torch.compile(net, backend="convdispatch", dynamic=False, options=options)
    with torch.inference_mode():
        assert differing(compiled, images) == 0
    torch.compiler.reset()


def test_values_of_another_kind_are_refused():
    with pytest.raises(InvalidArgument, match="batch_invariant must be None, True or False"):
        ct.enable(batch_invariant="yes")
    with pytest.raises(InvalidPolicy, match="batch_invariant"):
        Backend(options={"batch_invariant": 2})


def test_enable_goes_before_the_policy():
    for asked, outside, expected in ((None, True, True), (False, True, False), (True, None, True)):
        with policy(batch_invariant=outside):
            chosen = settings.policy_of(settings.Settings(batch_invariant=asked), (False, False))
        assert chosen.is_invariant is expected
    assert settings.policy_of(settings.DEFAULT, (False, False)) == Policy()


def test_few_operations_are_counted_for_the_batch_of_choice(images):
    """``min_flops`` sends a layer to PyTorch for every batch or for none."""
    net = torch.nn.Conv2d(5, 24, 3, padding=1).eval()
    one = 2 * 24 * 99 * 45
    ct.reset_counters()
    with ct.enable(batch_invariant=True, min_flops=20 * one), torch.inference_mode():
        net(images[:1].contiguous())
    assert not ct.counters()["left"]
