"""convert(fuse=True) beside other users of Dynamo, scripting, functorch, and sizes that change."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import error, forms  # noqa: E402 (torch is asked for first)
from torch_small import Disabled, Net  # noqa: E402

import convdispatch.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_compiler")
nn = torch.nn


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    with ct.enable(solver="im2col*"), torch.no_grad():
        yield


class Nested(Net):
    def middle(self, y):
        return torch.compile(lambda v: v.sin(), backend="aot_eager")(y)


class Scopes(Net):
    def middle(self, y):
        with torch.enable_grad(), torch.autocast("cpu"):
            y = torch.nn.functional.conv2d(y, self.two.weight)
        return y.float().repeat(1, 2, 1, 1)


class Twice(Net):
    def forward(self, x, y=None):
        return super().forward(x) + super().forward(x if y is None else y)


@pytest.mark.parametrize("kind", [Net, Disabled, Nested, Scopes])
def test_a_model_that_uses_dynamo_itself(kind):
    model, x = kind().eval(), torch.randn(1, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    limit = 1e-2 if kind is Scopes else 1e-5
    for _ in range(2):
        assert error(made(x), model(x)) < limit
    assert error(torch.compile(made, backend="aot_eager")(x), model(x)) < limit


def test_one_tensor_given_twice_and_then_two():
    model, x, y = Twice().eval(), torch.randn(1, 3, 5, 6), torch.randn(1, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    for given in ((x, x), (x, y), (y, x), (x,), (x, x)):
        assert error(made(*given), model(*given)) < 1e-5


def test_many_sizes_need_few_graphs():
    model = Net().eval()
    made = ct.convert(model, fuse=True)
    for size in (*range(4, 14), *range(4, 14)):
        x = torch.randn(1, 3, size, size + 1)
        assert error(made(x), model(x)) < 1e-5
    assert len(made._compiled_state.backend.graphs) <= 2, ct.fusion(made)
    assert all("2 convolutions" in each for each in forms(made))


def test_an_upsampling_to_sizes_that_change():
    class Up(Net):
        def forward(self, x, size):
            y = nn.functional.interpolate(super().forward(x), size=size, mode="bilinear")
            return nn.functional.interpolate(y, scale_factor=1.5)

    model = Up().eval()
    made = ct.convert(model, fuse=True)
    for size in range(4, 9):
        x = torch.randn(1, 3, size, size)
        assert error(made(x, (size + 3, 2 * size)), model(x, (size + 3, 2 * size))) < 1e-5
    assert all("2 convolutions" in each for each in forms(made)), ct.fusion(made)


def test_scripting_and_functional_calls():
    model, x = Net().eval(), torch.randn(1, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    expected = copy.deepcopy(model).double()(x.double())
    assert error(torch.jit.script(made)(x), expected) < 1e-5
    assert error(torch.jit.trace(made, x)(x), expected) < 1e-5
    doubled = {name: value * 2 for name, value in made.state_dict().items()}
    twice = {name: value * 2 for name, value in model.state_dict().items()}
    got = torch.func.functional_call(made, doubled, (x,))
    assert error(got, torch.func.functional_call(model, twice, (x,))) < 1e-5
    assert error(made(x), expected) < 1e-5
    with torch.enable_grad():
        slope = torch.func.grad(lambda v: made(v).sum())(x)
        assert error(slope, torch.func.grad(lambda v: model(v).sum())(x)) < 1e-5


def test_a_module_of_another_type_or_device():
    model, x = Net().eval(), torch.randn(1, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    assert error(made(x), model(x)) < 1e-5
    made.double()
    assert made(x.double()).dtype is torch.float64
    assert error(made(x.double()), copy.deepcopy(model).double()(x.double())) < 1e-12
    made.bfloat16()
    assert made(x.bfloat16()).dtype is torch.bfloat16
    made.to("meta")
    assert made(x.bfloat16().to("meta")).is_meta
