"""Layers, losses and optimisers: against NumPy and torch, over many steps, and refused input."""

import numpy as np
import pytest
from checking import compare
from small_net import LABELS, given, net, normal, torch_net

from convdispatch.api.errors import InvalidArgument
from convdispatch.elementwise import reduce
from convdispatch.nn import (
    LRN,
    SGD,
    Activation,
    Adam,
    AdaptiveAvgPool2d,
    BatchNorm2d,
    ConvTranspose2d,
    Dropout,
    Module,
    Parameter,
    ReLU,
    Tape,
    functional,
)
from convdispatch.tensor import Tensor


@pytest.mark.parametrize(
    ("which", "layout"),
    [
        pytest.param(which, layout, marks=[] if number % 2 == (layout == "nhwc") else [pytest.mark.full])
        for number, which in enumerate(("sgd", "momentum", "nesterov", "adam"))
        for layout in ("nchw", "nhwc")
    ],
)
def test_training_steps_are_torchs(queue, layout, which):
    torch = pytest.importorskip("torch", reason="torch is not installed: gradients are checked numerically elsewhere")
    ours, theirs = net(queue, layout), torch_net(torch)
    state = ours.state_dict()
    assert {n for n in theirs.state_dict() if "num_batches" not in n} == state.keys()
    theirs.load_state_dict({n: torch.from_numpy(t.numpy().copy()) for n, t in state.items()}, strict=False)
    if which == "adam":
        mine, other = (
            Adam(ours.parameters(), 0.01, weight_decay=0.1),
            torch.optim.Adam(theirs.parameters(), 0.01, weight_decay=0.1),
        )
    else:
        options = {"sgd": {}, "momentum": {"momentum": 0.9, "weight_decay": 0.1}}.get(
            which, {"momentum": 0.8, "nesterov": True}
        )
        mine, other = SGD(ours.parameters(), 0.05, **options), torch.optim.SGD(theirs.parameters(), 0.05, **options)
    for step in range(4):
        x = normal(4, 3, 14, 14, seed=step)
        with Tape() as tape:
            loss = functional.cross_entropy(ours(given(x, layout, queue)), LABELS)
        tape.backward(loss)
        mine.step()
        other.zero_grad()
        expected = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(LABELS).long())
        expected.backward()
        other.step()
        assert abs(float(loss.numpy()) - expected.item()) < 1e-4 * (1 + step)
    for name, tensor in ours.state_dict().items():
        # Adam divides small gradients by their own size, which keeps no digits of those that are nearly zero.
        compare(tensor.numpy(), theirs.state_dict()[name].double().numpy(), 2e-2 if which == "adam" else 2e-4)
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        compare(ours(given(x, layout, queue)).numpy(), theirs(torch.from_numpy(x)).double().numpy(), 5e-2)


def test_states_move_between_layouts(queue):
    first, second = net(queue, "nchw"), net(queue, "nhwc", seed=1)
    second.load_state_dict({name: tensor.numpy() for name, tensor in first.state_dict().items()})
    x = normal(4, 3, 14, 14)
    compare(second.eval()(given(x, "nhwc", queue)).numpy(), first.eval()(given(x, "nchw", queue)).numpy(), 1e-5)


def test_cross_entropy_of_labels_that_are_none(queue):
    x = Tensor.from_numpy(normal(3, 4), queue)
    for labels, words in (
        (np.array([0, 4, 1]), "labels must be 0 to 3, got 0 to 4"),
        (np.array([0, -1, 1]), "labels must be 0 to 3"),
        (np.array([0.0, 1, 1]), "integers, got float64"),
        (np.array([0, 1]), "3 integers"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            functional.cross_entropy(x, labels)
    bad = Tensor.from_numpy(np.array([0, 9, 1], np.int64), queue)
    losses = functional.cross_entropy(x, bad, reduction="none").numpy()
    assert np.isnan(losses).tolist() == [False, True, False]


def test_dropout(queue):
    x = Parameter(Tensor.from_numpy(np.full((100, 1001), 2, np.float32), queue))
    random = np.random.default_rng(1)
    with Tape() as tape:
        y = functional.dropout(x, 0.3, random)
        loss = reduce("sum", "y * 3", y=y)
    tape.backward(loss)
    values, slopes = y.numpy(), x.grad.numpy()
    assert set(np.unique(values).tolist()) <= {0.0, np.float32(2 / 0.7)}
    assert abs((values == 0).mean() - 0.3) < 0.01
    np.testing.assert_allclose(slopes, values * 1.5, rtol=1e-5)  # the same mask
    assert not np.array_equal(functional.dropout(x, 0.3, random).numpy(), values)
    layer = Dropout(0.5, seed=3)
    assert layer.eval()(x) is x
    assert (layer.train()(x).numpy() == 0).any()
    with pytest.raises(InvalidArgument, match="below 1, got 1"):
        Dropout(1)


def test_layers_of_other_kinds(queue):
    x = Tensor.from_numpy(normal(2, 4, 5, 5), queue)
    assert ConvTranspose2d(4, 6, 3, stride=2, groups=2, queue=queue)(x).shape == (2, 6, 11, 11)
    assert AdaptiveAvgPool2d((2, 3))(x).shape == (2, 4, 2, 3)
    assert LRN(5)(x).shape == x.shape
    assert (ReLU()(x).numpy() >= 0).all()
    assert Activation("tanh")(x).numpy().max() <= 1
    last = ConvTranspose2d(4, 6, 3, layout="nhwc", queue=queue)
    assert last.state_dict()["weight"].shape == (4, 6, 3, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: functional.max_pool(x, 3, padding=2), "at most half the kernel"),
        (lambda x: functional.max_pool(x, 9), "does not fit"),
        (lambda x: functional.max_pool(x, 0), "kernel must be 1 or more"),
        (lambda x: functional.max_pool(x[0], 2), "4 axes"),
        (lambda x: functional.avg_pool(x, 2, layout="chwn"), "layout must be"),
        (lambda x: functional.adaptive_avg_pool(x[:, :, :0], 2), "at least one pixel"),
        (lambda x: functional.linear(x, x), "takes x of shape"),
        (lambda x: functional.linear(x[0, 0], x[0, 1, :, :3]), "takes 3 features"),
        (lambda x: functional.softmax(x, 4), "axis must be one of 4"),
        (lambda x: functional.cross_entropy(x, np.zeros(2)), "logits of shape"),
        (lambda x: functional.activate(x, "swish"), "activation must be"),
        (lambda x: functional.local_response_norm(x, 0), "size of 1 or more"),
        (lambda x: functional.mse_loss(x, x[0]), "must have x's shape"),
        (lambda x: BatchNorm2d(3, queue=x.queue)(x), r"needs scale of shape \(4,\), got \(3,\)"),
        (lambda x: BatchNorm2d(4, queue=x.queue)(x[:1, :, :1, :1]), "more than one value a channel"),
        (lambda x: BatchNorm2d(4, activation="elu", queue=x.queue)(x), "fuses relu alone"),
        (lambda x: SGD([], 0.1), "needs parameters"),
        (lambda x: SGD([x], 0.1), "changes Parameters, got Tensor"),
        (lambda x: SGD([Parameter(x)], 0.1, nesterov=True), "momentum above 0"),
    ],
)
def test_wrong_input_says_what_was_expected(queue, call, words):
    with pytest.raises(ValueError, match=words):
        call(Tensor.from_numpy(normal(2, 4, 5, 5), queue))


class Broken(Module):
    pass


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Broken has no forward"):
        Broken()(1)
