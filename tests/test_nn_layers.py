"""Layers, losses, optimisers, the tape and checkpoints: against NumPy and torch, over many steps, and refused input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checking import compare

from convdispatch.api.errors import InvalidArgument
from convdispatch.elementwise import Generator, apply, reduce
from convdispatch.nn import (
    LRN,
    SGD,
    Activation,
    Adam,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    ConvTranspose2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    Parameter,
    ReLU,
    Sequential,
    Tape,
    functional,
    load_tensors,
    save_tensors,
)
from convdispatch.tensor import Tensor


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net(queue, layout="nchw", seed=0):
    rng, common = np.random.default_rng(seed), {"layout": layout, "queue": queue}
    return Sequential(
        Conv2d(3, 8, 3, padding=1, bias=False, rng=rng, **common),
        BatchNorm2d(8, activation="relu", **common),
        MaxPool2d(3, 2, 1, layout=layout),
        Conv2d(8, 6, 3, stride=2, groups=2, activation="relu", rng=rng, **common),
        AvgPool2d(2, 1, layout=layout),
        Flatten(layout=layout),
        Linear(6 * 2 * 2, 5, layout=layout, queue=queue, rng=rng),
    )


def torch_net(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        nn.Conv2d(8, 6, 3, stride=2, groups=2),
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2, 1)),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, 5),
    )


def given(x, layout, queue):
    return Tensor.from_numpy(x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1)), queue)


LABELS = np.array([0, 3, 4, 1], np.int32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("which", ["sgd", "momentum", "nesterov", "adam"])
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
    state = first.state_dict()
    with pytest.raises(InvalidArgument, match=r"missing .*'6\.bias'"):
        first.load_state_dict({name: value for name, value in state.items() if name != "6.bias"})
    with pytest.raises(InvalidArgument, match=r"6.bias has shape \(5,\), got \(4,\)"):
        first.load_state_dict(state | {"6.bias": np.zeros(4)})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(queue, reduction):
    x = 4 * normal(5, 70)
    labels = np.array([3, 0, 69, 20, 3])
    wide = x.astype(np.float64)
    rows = np.log(np.exp(wide).sum(1)) - wide[np.arange(5), labels]
    expected = {"mean": rows.mean(), "sum": rows.sum(), "none": rows}[reduction]
    slope = np.exp(wide) / np.exp(wide).sum(1, keepdims=True) - np.eye(70)[labels]
    logits = Parameter(Tensor.from_numpy(x, queue))
    with Tape() as tape:
        loss = functional.cross_entropy(logits, labels, reduction=reduction)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5)
    tape.backward(loss, Tensor.from_numpy(np.ones(loss.shape, np.float32), queue))
    compare(logits.grad.numpy(), slope / (5 if reduction == "mean" else 1), 1e-5)


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
    generator = Generator(1, queue)
    with Tape() as tape:
        y = functional.dropout(x, 0.3, generator)
        loss = reduce("sum", "y * 3", y=y)
    tape.backward(loss)
    values, slopes = y.numpy(), x.grad.numpy()
    assert set(np.unique(values).tolist()) <= {0.0, np.float32(2 / 0.7)}
    assert abs((values == 0).mean() - 0.3) < 0.01
    np.testing.assert_allclose(slopes, values * 1.5, rtol=1e-5)  # the same mask
    assert not np.array_equal(functional.dropout(x, 0.3, generator).numpy(), values)
    layer = Dropout(0.5, queue=queue, seed=3)
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


# --- the tape --------------------------------------------------------------------------------------------------------


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


def test_a_frozen_net_trains_once_thawed(queue):
    layer = Conv2d(2, 3, 1, queue=queue)
    x = Tensor.from_numpy(normal(1, 2, 3, 3), queue)
    layer.freeze()
    before = layer(x).numpy()
    optimizer = SGD(layer.parameters(), 1.0)
    layer.train()
    with Tape() as tape:
        loss = reduce("sum", "y * y", y=layer(x))
    tape.backward(loss)
    optimizer.step()
    assert not np.allclose(layer(x).numpy(), before)
    np.testing.assert_allclose(layer.freeze()(x).numpy(), layer.thaw()(x).numpy(), rtol=1e-5, atol=1e-5)


def test_a_step_leaks_nothing(queue, full):
    """Device memory and Python's objects after many steps are what they are after ten."""
    import gc

    resource = pytest.importorskip("resource")
    module = net(queue)
    optimizer = SGD(module.parameters(), 1e-3, 0.9)
    x, labels = Tensor.from_numpy(normal(4, 3, 14, 14), queue), Tensor.from_numpy(LABELS, queue)

    def steps(count):
        for _ in range(count):
            with Tape() as tape:
                loss = functional.cross_entropy(module(x), labels)
            tape.backward(loss)
            optimizer.step()
        queue.finish()
        gc.collect()
        return _managed(queue), len(gc.get_objects())

    memory, objects = steps(10)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    later, more = steps(1000 if full else 150)
    assert later == memory
    assert more - objects < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 20_000  # KiB


def _managed(queue):
    """Bytes that the queue's pool has taken from the device, used or not."""
    from convdispatch import memory

    return memory._pools[queue].managed_bytes


# --- checkpoints -----------------------------------------------------------------------------------------------------


def tensors():
    return {
        "a": normal(3, 4),
        "b.c": np.arange(6, dtype=np.int64).reshape(2, 3),
        "half": normal(5).astype(np.float16),
        "none": np.zeros((0, 3), np.float32),
        "one": np.array(2.5, np.float64),
        "flags": np.array([True, False]),
    }


def test_safetensors_there_and_back(queue, tmp_path):
    values = tensors()
    save_tensors(tmp_path / "x.st", values | {"tensor": Tensor.from_numpy(values["a"], queue)}, {"note": "é"})
    arrays, metadata = load_tensors(tmp_path / "x.st")
    assert metadata == {"note": "é"}
    np.testing.assert_array_equal(arrays.pop("tensor"), values["a"])
    assert arrays.keys() == values.keys()
    for name, array in values.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_the_files_are_safetensors(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed: only our own reader reads")
    values = tensors()
    save_tensors(tmp_path / "x.st", values)
    for name, array in numpy.load_file(tmp_path / "x.st").items():
        np.testing.assert_array_equal(array, values[name])
    numpy.save_file(values, tmp_path / "y.st", {"by": "them"})
    arrays, metadata = load_tensors(tmp_path / "y.st")
    assert metadata == {"by": "them"}
    for name, array in values.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_every_damage_is_noticed(tmp_path):
    path = tmp_path / "x.st"
    save_tensors(path, {"a": normal(3, 4), "b": normal(2)})
    good = path.read_bytes()
    length = 8 + int.from_bytes(good[:8], "little")
    bad = [good[:n] for n in (0, 5, 8, 20, length, len(good) - 1)] + [good + b"x", b"\xff" * 8 + good[8:]]
    bad += [good[:8] + b"[" + good[9:], good.replace(b"F32", b"F99"), good.replace(b"[3,4]", b"[3,5]")]
    bad += [
        good.replace(b"[0,48]", b"[0,44]"),
        good.replace(b"[3,4]", b"[-3,4]"[:5]),
        good.replace(b"[48,56]", b"[40,48]"),
    ]
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"x\.st is damaged"):
            load_tensors(path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load_tensors(tmp_path / "missing.st")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        save_tensors(tmp_path / "no" / "x.st", {})
    with pytest.raises(InvalidArgument, match="safetensors holds"):
        save_tensors(path, {"a": np.zeros(2, np.complex64)})


def test_an_interrupted_save_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "x.st"
    save_tensors(path, {"a": normal(4)})
    old = path.read_bytes()
    code = (
        "import os, numpy as np\n"
        "from convdispatch.nn import saving\n"
        "saving.os.fsync = lambda handle: os.kill(os.getpid(), 9)\n"  # the power goes while the file is written
        f"saving.save_tensors({str(path)!r}, {{'a': np.zeros(100000, np.float32)}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -9
    assert path.read_bytes() == old
    load_tensors(path)


def test_a_failed_save_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "x.st"
    save_tensors(path, {"a": normal(4)})
    old = path.read_bytes()

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InvalidArgument, match="No space left"):
        save_tensors(path, {"a": normal(9)})
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["x.st"]


def test_optimizer_states(queue):
    layer = Linear(3, 2, queue=queue)
    optimizer = Adam(layer.parameters(), 0.01)
    with Tape() as tape:
        loss = reduce("sum", "y", y=layer(Tensor.from_numpy(normal(4, 3), queue)))
    tape.backward(loss)
    optimizer.step()
    state = optimizer.state_dict()
    assert state["mean.0"].shape == (2, 3)
    other = Adam(Linear(3, 2, queue=queue).parameters(), 0.5)
    other.load_state_dict(state)
    assert (other.steps, other.lr) == (1, 0.01)
    for name, array in other.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    with pytest.raises(InvalidArgument, match=r"does not fit: mean\.0"):
        Adam(Linear(4, 2, queue=queue).parameters()).load_state_dict(state)


class Broken(Module):
    pass


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Broken has no forward"):
        Broken()(1)


def test_the_pages_snippets_run():
    page, scope = Path(__file__).parent.parent / "docs" / "framework.md", {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, page.name, "exec"), scope)
    assert np.isfinite(scope["loss"].numpy())
