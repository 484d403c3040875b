"""The tape: what it notes, and how gradients accumulate."""

import numpy as np
import pytest
from small_net import LABELS, normal

from convdispatch.api.errors import InvalidArgument
from convdispatch.elementwise import apply, reduce
from convdispatch.nn import Parameter, Tape, functional
from convdispatch.nn import tape as tape_module
from convdispatch.tensor import Tensor


def test_a_tape_notes_only_what_parameters_reach(queue):
    x, p = Tensor.from_numpy(normal(3), queue), Parameter(Tensor.from_numpy(normal(3), queue))
    assert (p * 2).mark == 0  # outside any block
    with Tape() as tape:
        x * 2 + x
        assert len(tape) == 0
        y = p * x
        assert len(tape) == 1
    with pytest.raises(InvalidArgument, match="pass its gradient"):
        tape.backward(y)
    with pytest.raises(InvalidArgument, match="not computed from a Parameter"):
        tape.backward(x)
    with pytest.raises(InvalidArgument, match="must have the result's shape"):
        tape.backward(y, x[:1])
    tape.backward(y, x)
    np.testing.assert_allclose(p.grad.numpy(), x.numpy() ** 2, rtol=1e-6)
    with Tape(), pytest.raises(InvalidArgument, match="writes in place"):
        apply("x = x * p", x=p * 1, p=p)


def test_gradients_accumulate_when_asked_and_reach_watched_tensors(queue):
    x, p = Tensor.from_numpy(normal(3), queue), Parameter(Tensor.from_numpy(normal(3, seed=1), queue))
    for times in (1, 2, 3):
        with Tape() as tape:
            tape.watch(x)
            y = p * x + p  # used twice
            loss = reduce("sum", "y", y=y)
        dx, dy = tape.backward(loss, accumulate=times > 1, keep=(x, y))
        np.testing.assert_allclose(p.grad.numpy(), times * (x.numpy() + 1), rtol=1e-5)
        np.testing.assert_allclose(dx.numpy(), p.numpy(), rtol=1e-6)
        np.testing.assert_array_equal(dy.numpy(), 1)
    with Tape() as tape:
        loss = reduce("sum", "y * y", y=p)
    tape.backward(loss)  # replaces
    np.testing.assert_allclose(p.grad.numpy(), 2 * p.numpy(), rtol=1e-6)


@pytest.mark.parametrize("uses", [1, 2, 4, 7, 8, 9, 20])
def test_gradients_of_several_uses_are_added_up_at_once(queue, uses, monkeypatch):
    """The sum has the bits of one addition after another, in the order in which the uses are read back."""
    arrays = [normal(3, 5, seed=i) for i in range(uses + 1)]
    x, *others = (Tensor.from_numpy(array, queue) for array in arrays)
    p, factors = Parameter(x), [Parameter(other) for other in others]
    with Tape() as tape:
        y = p * 1  # Parameters have memory of their own for their gradients
        results = [y * factor for factor in factors]
        loss = results[0]
        for result in results[1:]:
            loss = loss + result
    texts, real = [], tape_module._sum
    monkeypatch.setattr(tape_module, "_sum", lambda given: texts.append(len(given or ())) or real(given))
    tape.backward(loss, Tensor.from_numpy(np.ones((3, 5), np.float32), queue))
    expected = np.zeros((3, 5), np.float32)
    for array in reversed(arrays[1:]):
        expected = expected + array
    np.testing.assert_array_equal(p.grad.numpy(), expected)
    assert sum(count > 1 for count in texts) == -(-(uses - 1) // 7)


def test_a_loss_begins_with_one(queue):
    p = Parameter(Tensor.from_numpy(normal(4, 5), queue))
    for reduction in ("mean", "sum"):
        with Tape() as tape:
            loss = functional.cross_entropy(p, LABELS, reduction=reduction)
        (start,) = tape.backward(loss, keep=[loss])
        assert start.numpy() == 1
        given, p.grad = p.grad.numpy(), None
        with Tape() as tape:
            loss = functional.cross_entropy(p, LABELS, reduction=reduction)
        tape.backward(loss, Tensor.from_numpy(np.float32(1), queue))
        np.testing.assert_array_equal(p.grad.numpy(), given)
        with Tape() as tape:
            loss = functional.cross_entropy(p, LABELS, reduction=reduction) * 2
        tape.backward(loss)
        np.testing.assert_array_equal(p.grad.numpy(), 2 * given)
