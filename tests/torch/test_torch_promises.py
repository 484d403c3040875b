"""``batch_invariant`` and ``strict_nan`` through PyTorch's doors: eager calls under ``enable()``, compiled graphs."""

import warnings

import pytest
import torch

import convdispatch.torch as ct
from convdispatch import policy
from convdispatch.api.errors import InvalidArgument, InvalidPolicy
from convdispatch.api.policy import Policy
from convdispatch.torch import settings
from convdispatch.torch.compile.backend import Backend

pytestmark = pytest.mark.computes
WHOLE, PARTS = 9, ((1, 8), (5, 1))


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


def test_eager_calls_and_gradients_of_any_batch(images):
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
def test_graphs_of_any_batch(images, engine, full):
    """A form has an activation of ours; on a CPU no graph is inductor's, which races it otherwise."""
    if engine is not None and not full:
        pytest.skip("takes long: run with --full")
    options = {"batch_invariant": True} | ({"engine": engine} if engine else {})
    net = model(torch.nn.ReLU if engine == "operators" else torch.nn.SiLU)
    compiled = torch.compile(net, backend="convdispatch", dynamic=False, options=options)
    with torch.inference_mode():
        assert differing(compiled, images) == 0
    torch.compiler.reset()


@pytest.mark.parametrize("promise", ["batch_invariant", "strict_nan"])
def test_values_of_another_kind_are_refused(promise):
    with pytest.raises(InvalidArgument, match=f"{promise} must be None, True or False, got 'yes'"):
        ct.enable(**{promise: "yes"})
    with pytest.raises(InvalidPolicy, match=rf"policy\({promise}=...\) takes bool"):
        Backend(options={promise: 3})


@pytest.mark.parametrize("promise", ["batch_invariant", "strict_nan"])
def test_what_is_asked_for_at_the_door_goes_before_the_policy(promise):
    holds = {"batch_invariant": "is_invariant", "strict_nan": "is_strict_nan"}[promise]
    for outside, asked, expected in ((None, True, True), (True, False, False), (True, None, True)):
        with policy(**{promise: outside}):
            chosen = settings.policy_of(settings.Settings(**{promise: asked}), (False, False))
        assert getattr(chosen, holds) is expected
    assert settings.policy_of(settings.DEFAULT, (False, False)) == Policy()


def test_few_operations_are_counted_for_the_batch_of_choice(images):
    """``min_flops`` sends a layer to PyTorch for every batch or for none."""
    net = torch.nn.Conv2d(5, 24, 3, padding=1).eval()
    one = 2 * 24 * 99 * 45
    ct.reset_counters()
    with ct.enable(batch_invariant=True, min_flops=20 * one), torch.inference_mode():
        net(images[:1].contiguous())
    assert not ct.counters()["left"]


# --- an infinity or NaN reaches what reads it -------------------------------------------------------------------------


def net():
    """Two layers that Winograd would compute, which bring a pixel to 5x5."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(2))).eval()


def picture(value):
    x = torch.ones(2, 32, 24, 24)
    x[1, 5, 11, 13] = value
    return x


def reached(y) -> list[int]:
    """The values that are not finite, of each image."""
    return [int((~image.isfinite()).sum()) for image in y]


def by_backend(model, x):
    torch._dynamo.reset()
    return torch.compile(model, backend="convdispatch", options={"strict_nan": True})(x)


def by_convert(model, x):
    return ct.convert(model, fuse=True)(x)


DOORS = {
    "enable": (lambda: ct.enable(strict_nan=True), lambda model, x: model(x)),
    "enable, a policy": (lambda: policy(strict_nan=True), lambda model, x: ct.enable() and model(x)),
    "backend": (lambda: policy(), by_backend),
    "convert, a policy": (lambda: policy(strict_nan=True), by_convert),
    "convert, enable": (lambda: ct.enable(strict_nan=True), by_convert),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.usefixtures("counted")
def test_a_pixel_stays_its_square(door):
    under, run = DOORS[door]
    with warnings.catch_warnings(), torch.no_grad(), under():
        warnings.simplefilter("ignore")
        assert reached(run(net(), picture(float("nan")))) == [0, 25 * 32]


def test_the_gradient_of_the_image_too():
    model, x = net(), torch.ones(2, 32, 24, 24, requires_grad=True)
    with ct.enable(strict_nan=True):
        y = model(x)
        y.backward(picture(float("nan")).reshape(y.shape))
    assert reached(x.grad) == [0, 25 * 32]


def test_calls_before_the_policy_do_not_decide_those_under_it():
    model, x = net(), picture(float("nan"))
    with torch.no_grad(), ct.enable():
        for _ in range(2):
            model(x)
            with policy(strict_nan=True):
                assert reached(model(x)) == [0, 25 * 32]
