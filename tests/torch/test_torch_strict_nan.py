"""``strict_nan`` through PyTorch's doors: an infinity or NaN reaches what reads it, however the model is run."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import convdispatch.torch as ct  # noqa: E402
from convdispatch import policy  # noqa: E402
from convdispatch.api.errors import InvalidArgument, InvalidPolicy  # noqa: E402


def net():
    """Two layers that Winograd would compute, which bring a pixel to 5x5."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 3, padding=1)]
    return torch.nn.Sequential(*layers).eval()


def picture(value):
    x = torch.ones(2, 32, 24, 24)
    x[1, 5, 11, 13] = value
    return x


def reached(y) -> list[int]:
    """The values that are not finite, of each image."""
    return [int((~image.isfinite()).sum()) for image in y]


def under_enable(model, x):
    with ct.enable(strict_nan=True):
        return model(x)


def under_policy(model, x):
    with ct.enable(), policy(strict_nan=True):
        return model(x)


def by_backend(model, x):
    torch._dynamo.reset()
    return torch.compile(model, backend="convdispatch", options={"strict_nan": True})(x)


def fused(model, x):
    with policy(strict_nan=True):
        return ct.convert(model, fuse=True)(x)


def fused_under_enable(model, x):
    with ct.enable(strict_nan=True):
        return ct.convert(model, fuse=True)(x)


DOORS = [under_enable, under_policy, by_backend, fused, fused_under_enable]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_pixel_stays_its_square(door):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        assert reached(door(net(), picture(float("nan")))) == [0, 25 * 32]


def test_the_gradient_of_the_image_too():
    model, x = net(), torch.ones(2, 32, 24, 24, requires_grad=True)
    with ct.enable(strict_nan=True):
        y = model(x)
        y.backward(picture(float("nan")).reshape(y.shape))
    assert reached(x.grad) == [0, 25 * 32]


def test_calls_before_the_policy_do_not_decide_those_under_it():
    model, x = net(), picture(float("nan"))
    with torch.no_grad(), ct.enable():
        model(x)
        with policy(strict_nan=True):
            assert reached(model(x)) == [0, 25 * 32]
        model(x)
        with policy(strict_nan=True):
            assert reached(model(x)) == [0, 25 * 32]


def test_what_is_no_truth_value_is_refused():
    with pytest.raises(InvalidArgument, match="strict_nan must be None, True or False, got 'yes'"):
        ct.enable(strict_nan="yes")
    with pytest.raises((InvalidPolicy, RuntimeError), match=r"policy\(strict_nan=...\) takes bool"):
        torch.compile(net(), backend="convdispatch", options={"strict_nan": 3})(picture(1.0))
