"""Captured functions: the same bits as the plain function, replay after replay, and clear words for what cannot be."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from convdispatch import conv, policy
from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.elementwise import Generator, apply, full
from convdispatch.nn import (
    LRN,
    SGD,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Tape,
    capture,
)
from convdispatch.nn.functional import cross_entropy
from convdispatch.tensor import Tensor


def net_of(queue) -> Sequential:
    """Every kind of layer; the same numbers each time."""
    random = np.random.default_rng(0)
    net = Sequential(
        Conv2d(3, 8, 3, padding=1, queue=queue),
        BatchNorm2d(8, queue=queue),
        ReLU(),
        LRN(3),
        MaxPool2d(2),
        Conv2d(8, 6, 3, stride=2, queue=queue),
        ReLU(),
        Flatten(),
        Dropout(0.3, seed=7, queue=queue),
        Linear(54, 5, queue=queue),
    )
    for parameter in net.parameters():
        parameter.write(random.standard_normal(parameter.shape).astype(np.float32) * 0.2)
    return net


def batches(queue, sizes) -> list[tuple[Tensor, Tensor]]:
    random = np.random.default_rng(1)
    return [
        (
            Tensor.from_numpy(random.standard_normal((size, 3, 16, 16), dtype=np.float32), queue),
            Tensor.from_numpy(random.integers(0, 5, size).astype(np.int32), queue),
        )
        for size in sizes
    ]


def trained(queue, sizes, wrap) -> tuple[list[float], list[np.ndarray], object]:
    """Losses, and then all parameters and statistics, of a net trained on batches of these sizes."""
    net = net_of(queue)
    optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)

    def gradients(x, labels):
        with Tape() as tape:
            loss = cross_entropy(net(x), labels)
        tape.backward(loss)
        return loss

    step, losses = wrap(gradients), []
    for x, labels in batches(queue, sizes):
        losses.append(float(step(x, labels).numpy()))
        optimizer.step()
    return losses, [value.numpy() for value in net.state_dict().values()], step


@pytest.mark.parametrize("sizes", [(4,) * 6, (4, 4, 4, 3, 4, 3, 3, 4)], ids=["one shape", "two shapes"])
def test_same_bits_as_the_plain_function(queue, sizes):
    plain, expected, _ = trained(queue, sizes, lambda function: function)
    losses, values, step = trained(queue, sizes, capture)
    assert step.commands > 20  # else nothing was recorded
    assert losses == plain
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_dropout_draws_anew(queue):
    layer, other = (Dropout(0.5, seed=3, queue=queue) for _ in range(2))
    step, x = capture(layer), full((64,), 1.0, queue=queue)
    seen = [step(x).numpy() for _ in range(5)]
    assert len({array.tobytes() for array in seen}) == 5
    for array in seen:
        np.testing.assert_array_equal(array, other(x).numpy())
    assert layer.generator.state == other.generator.state


def test_random_numbers_are_new_each_time(queue):
    mine, other = (Generator(5, queue) for _ in range(2))
    step, x = capture(lambda x: apply("x + r", x=x, r=mine.normal(x.shape))), full((33,), 1.0, queue=queue)
    for _ in range(4):
        np.testing.assert_array_equal(step(x).numpy(), other.normal((33,)).numpy() + 1)


def test_nothing_runs_while_it_is_recorded(queue):
    counter, step = full((), 0.0, queue=queue), None
    step = capture(lambda x: apply("c = c + x", c=counter, x=x))
    for calls in range(1, 5):
        step(full((), 1.0, queue=queue))
        assert counter.numpy() == calls


def test_answers_of_any_structure(queue):
    step = capture(lambda x: {"sum": [x + 1, None], "same": (x, x * 2)})
    for value in (1.0, 2.0, 3.0):
        answer = step(full((3,), value, queue=queue))
        np.testing.assert_array_equal(answer["sum"][0].numpy(), value + 1)
        assert answer["sum"][1] is None
        np.testing.assert_array_equal(answer["same"][0].numpy(), value)
        np.testing.assert_array_equal(answer["same"][1].numpy(), value * 2)


def test_arguments_may_be_views(queue):
    whole = Tensor.from_numpy(np.arange(24, dtype=np.float32).reshape(4, 6), queue)
    step = capture(lambda x: x + 1)
    for column in range(4):
        view = whole[:, column : column + 2]
        np.testing.assert_array_equal(step(view).numpy(), view.numpy() + 1)


def test_fills_and_parts(queue):
    def function(x):
        y = full(x.shape, 2.0, queue=queue)
        return apply("a + b", a=y[1:3], b=x[1:3])

    step = capture(function)
    for value in (1.0, 5.0, 7.0):
        np.testing.assert_array_equal(step(full((4,), value, queue=queue)).numpy(), [value + 2] * 2)


def test_a_plan_that_enqueues_by_itself(queue, naive):
    """A solver that knows nothing of recordings is called again at each replay."""
    random = np.random.default_rng(0)
    w = Tensor.from_numpy(random.standard_normal((4, 3, 3, 3), dtype=np.float32), queue)
    step = capture(lambda x: conv(x, w) + 1)
    with policy(solver="naive.direct"):
        for _ in range(4):
            x = Tensor.from_numpy(random.standard_normal((2, 3, 6, 6), dtype=np.float32), queue)
            np.testing.assert_array_equal(step(x).numpy(), conv(x, w).numpy() + 1)
    assert step.commands == 2


def test_other_threads_are_not_recorded(queue):
    seen, inside, ran = [], threading.Event(), threading.Event()

    def other():
        inside.wait(60)
        seen.append((full((2,), 3.0, queue=queue) + 1).numpy().tolist())
        ran.set()

    thread = threading.Thread(target=other, daemon=True)
    thread.start()

    def function(x):
        inside.set()
        assert ran.wait(60)
        return x * 2

    step = capture(function)
    for value in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(step(full((2,), value, queue=queue)).numpy(), value * 2)
    assert seen == [[4.0, 4.0]]
    assert step.commands == 1


def test_memory_is_shared_and_let_go(queue):
    step = capture(lambda x: (((x + 1) * 2) - 3) * 4)
    x = full((1 << 21,), 1.0, queue=queue)  # 8 MiB: some devices' memory comes in blocks of 2
    for _ in range(3):
        step(x)
    assert 2 * x.nbytes <= step.nbytes < 5 * x.nbytes  # argument and answer; two of what lies between
    runtime.release_memory(queue.device)
    step.forget()
    assert step.nbytes == step.commands == 0


def test_only_some_shapes_are_kept(queue):
    step = capture(lambda x: x + 1)
    for size in range(1, 8):
        for value in (1.0, 2.0, 3.0):
            np.testing.assert_array_equal(step(full((size,), value, queue=queue)).numpy(), [value + 1] * size)
    assert len(step._known) == 4


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: x + float(x.numpy()[0]), "numpy()"),
        (lambda x: x + Tensor.from_numpy(np.ones(3, np.float32), x.queue), "from_numpy()"),
        (lambda x: (x + 1).write(np.ones(3, np.float32)), "write()"),
    ],
)
def test_copies_between_host_and_device_are_refused(queue, function, named):
    step, x = capture(function), full((3,), 1.0, queue=queue)
    step(x)
    with pytest.raises(InvalidArgument, match="captured function") as error:
        step(x)
    assert named in str(error.value)
    assert (x + 1).numpy().tolist() == [2.0] * 3  # recording has ended


def test_arguments_are_tensors_on_one_queue(queue):
    step, x = capture(lambda *x: x[0]), full((3,), 1.0, queue=queue)
    with pytest.raises(InvalidArgument, match="takes tensors, got"):
        step()
    with pytest.raises(InvalidArgument, match=r"got \['Tensor', 'float'\]"):
        step(x, 1.0)
    with pytest.raises(InvalidArgument, match="one queue"):
        step(x, full((3,), 1.0, queue=type(queue)(queue.context)))
