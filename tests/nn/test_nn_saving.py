"""Checkpoints: there and back, safetensors' own readers, damage, interrupted saves, optimisers' states."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from small_net import normal

from convdispatch.api.errors import InvalidArgument
from convdispatch.elementwise import reduce
from convdispatch.nn import Adam, Linear, Tape, load_tensors, save_tensors
from convdispatch.tensor import Tensor


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
