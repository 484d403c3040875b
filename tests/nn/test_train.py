"""Training: data sets and their damage, exact resumption after a kill, checkpoints, no leak, the command."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import run_cli

from convdispatch.api.errors import InvalidArgument
from convdispatch.nn import load_tensors
from convdispatch.train import Pictures, Settings, load, train
from convdispatch.train.data import FASHION_FOLDERS
from convdispatch.train.run import curve


def pictures(count=96, size=8, classes=4, seed=0) -> Pictures:
    """Bright quarters of noisy pictures: the class says which."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.int32)
    images = rng.integers(0, 60, (count, 1, size, size)).astype(np.uint8)
    half = size // 2
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[0, row * half : (row + 1) * half, column * half : (column + 1) * half] += 150
    names = tuple(map(str, range(classes)))
    cut = count * 3 // 4
    return Pictures("quarters", images[:cut], labels[:cut], images[cut:], labels[cut:], names)


SETTINGS = {"data": "quarters", "epochs": 4, "batch": 20, "lr": 0.1, "dropout": 0.2}


def run(path=None, device=None, **changes):
    options = {name: changes.pop(name) for name in ("resume", "every", "progress") if name in changes}
    return train(Settings(**SETTINGS | changes), device=device, checkpoint=path, data=pictures(), **options)


def test_a_net_learns(device):
    told = []
    report = run(device=device, epochs=12, progress=lambda *values: told.append(values))
    assert report.accuracy == 1.0
    assert report.losses[-1] < 0.3 < report.losses[0]
    assert len(report.losses) == report.steps == 12 * 4  # 72 pictures, the last batch of an epoch has 12
    assert told[-1][:2] == (48, 48)
    json.dumps(report.to_dict())
    assert curve(report.losses).count("\n") == 9


@pytest.mark.parametrize("precision", ["float16", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_16_bits_learn_as_float32_does(precision, device, tmp_path):
    steady = {"device": device, "lr": 0.05}  # at 0.1 one rounding may decide whether a net that has learned stays there
    plain = run(epochs=12, **steady)
    report = run(epochs=12, precision=precision, **steady)
    assert report.accuracy == 1.0
    assert report.losses != plain.losses
    np.testing.assert_allclose(report.losses[:24], plain.losses[:24], rtol=0.1, atol=0.05)
    half = tmp_path / "half.safetensors"
    run(half, **steady, epochs=6, precision=precision)
    assert run(half, **steady, epochs=12, precision=precision, resume=True).losses == report.losses
    with pytest.raises(InvalidArgument, match=f"was made with precision {precision}"):
        run(half, **steady, epochs=12, resume=True)


def test_adam_learns(device):
    assert run(device=device, epochs=12, optimizer="adam", lr=0.003).accuracy == 1.0


def test_the_same_seed_gives_the_same_run(device):
    first, second = run(device=device), run(device=device)
    assert first.losses == second.losses
    assert run(device=device, seed=1).losses != first.losses


class Killed(BaseException):
    """Stands for a signal that no handler sees."""


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adam", "lr": 0.003}, {"momentum": 0.0}], ids=str)
def test_resuming_is_exact(device, tmp_path, changes, monkeypatch):
    whole = run(tmp_path / "whole.st", device, **changes)
    from convdispatch.train import loop

    advance = loop.Run.advance

    def dies(self):
        if self.step == 9:  # in the third epoch, after the checkpoint of step 6
            raise Killed
        advance(self)

    monkeypatch.setattr(loop.Run, "advance", dies)
    with pytest.raises(Killed):
        run(tmp_path / "killed.st", device, every=3, **changes)
    monkeypatch.undo()
    resumed = run(tmp_path / "killed.st", device, resume=True, **changes)
    assert resumed.losses == whole.losses
    assert resumed.steps == len(whole.losses) - 9
    assert resumed.accuracy == whole.accuracy
    first, second = load_tensors(tmp_path / "whole.st")[0], load_tensors(tmp_path / "killed.st")[0]
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_a_killed_process_resumes(tmp_path):
    """SIGKILL at any moment, then the same command with --resume: the very weights of a run that was left alone."""
    if "digits" not in _available():
        pytest.skip("scikit-learn is not installed: no digits")

    def command(epochs, name, *more):
        options = ["--images", "200", "--epochs", str(epochs), "--every", "2", "--checkpoint", str(tmp_path / name)]
        return [sys.executable, "-m", "convdispatch", "train", "digits", *options, "--json", *more]

    process = subprocess.Popen(command(200, "run.st"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run.st").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    arrays, metadata = load_tensors(tmp_path / "run.st")
    assert len(arrays["losses"]) == int(metadata["step"]) > 0
    epochs = int(metadata["step"]) // 4 + 2  # 200 images are four batches
    subprocess.run(command(epochs, "run.st", "--resume"), check=True, capture_output=True, timeout=300)
    run_cli(*command(epochs, "whole.st")[3:], status=0)
    resumed, whole = load_tensors(tmp_path / "run.st")[0], load_tensors(tmp_path / "whole.st")[0]
    assert len(resumed["losses"]) > len(arrays["losses"])
    for name in whole:
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


def test_more_epochs_may_follow(device, tmp_path):
    run(tmp_path / "run.st", device, epochs=2)
    longer = run(tmp_path / "run.st", device, epochs=4, resume=True)
    assert longer.losses == run(device=device, epochs=4).losses


def test_an_interrupted_run_saves(device, tmp_path):
    def interrupt(done, total, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run.st", device, progress=interrupt)
    assert load_tensors(tmp_path / "run.st")[1]["step"] == "1"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(b"\xff" * 100), "is damaged"),
        (lambda path: path.write_text("not a checkpoint"), "is damaged"),
    ],
)
def test_a_damaged_checkpoint_says_so(device, tmp_path, damage, words):
    run(tmp_path / "run.st", device, epochs=1)
    damage(tmp_path / "run.st")
    with pytest.raises(InvalidArgument, match=r"run\.st.*" + words):
        run(tmp_path / "run.st", device, resume=True)


def test_another_runs_checkpoint_is_refused(device, tmp_path):
    run(tmp_path / "run.st", device, epochs=1)
    with pytest.raises(InvalidArgument, match=r"made with lr 0.1.*resume with the same"):
        run(tmp_path / "run.st", device, epochs=1, lr=0.2, resume=True)
    with pytest.raises(InvalidArgument, match=r"exists: go on from it"):
        run(tmp_path / "run.st", device)
    with pytest.raises(InvalidArgument, match="needs the checkpoint's path"):
        run(device=device, resume=True)
    with pytest.raises(InvalidArgument, match=r"folder .* does not exist"):
        run(tmp_path / "nowhere" / "run.st", device)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"batch": 0}, "batch must be 1"),
        ({"lr": float("nan")}, "lr must be 0"),
        ({"optimizer": "lbfgs"}, "sgd or adam"),
        ({"images": 1000}, "has 72 images, 1000 were asked for"),
        ({"lr": 1e30}, "a smaller --lr"),
    ],
)
def test_settings_that_make_no_run(device, changes, words):
    with pytest.raises(InvalidArgument, match=words):
        run(device=device, **changes)


# --- data ------------------------------------------------------------------------------------------------------------


def _available() -> set[str]:
    import importlib.util

    found = {"digits"} if importlib.util.find_spec("sklearn") else set()
    return found | ({"fashion-mnist"} if FASHION_FOLDERS[0].is_dir() else set())


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder: Path, packed: bool = True) -> None:
    data = pictures()
    parts = (("train", data.images, data.labels), ("t10k", data.test_images, data.test_labels))
    for name, images, labels in parts:
        for kind, array in (("images-idx3", images[:, 0]), ("labels-idx1", labels.astype(np.uint8))):
            content = idx(array)
            file = folder / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
def test_a_folder_of_idx_files(tmp_path, packed):
    write_idx(tmp_path, packed)
    data, expected = load(str(tmp_path)), pictures()
    np.testing.assert_array_equal(data.images, expected.images)
    np.testing.assert_array_equal(data.test_labels, expected.test_labels)
    assert data.classes == ("0", "1", "2", "3")


def test_a_folder_of_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(6):
            image.new("RGB", (9 + i, 7), (i, 0, 255)).save(tmp_path / name / f"{i}.png")
    data = load(str(tmp_path))
    assert data.images.shape == (10, 3, 7, 9)
    assert data.classes == ("cats", "dogs")
    assert sorted(data.labels.tolist() + data.test_labels.tolist()) == [0] * 6 + [1] * 6
    (tmp_path / "dogs" / "0.png").write_text("no picture")
    with pytest.raises(InvalidArgument, match=r"0\.png cannot be read as a picture"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "t10k-labels-idx1-ubyte.gz").unlink(), "has no t10k-labels-idx1-ubyte"),
        (lambda f: (f / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip"), "cannot be read"),
        (lambda f: (f / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0" * 40)), "damaged or no IDX"),
        (
            lambda f: (f / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(3, np.uint8)))),
            "72 train pictures and 3 labels",
        ),
    ],
)
def test_damaged_data_say_so(tmp_path, damage, words):
    write_idx(tmp_path)
    damage(tmp_path)
    with pytest.raises(InvalidArgument, match=words):
        load(str(tmp_path))


def test_missing_data_say_what_to_install(tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match="neither digits, fashion-mnist nor a folder"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument, match="two classes or more"):
        load(str(tmp_path))
    monkeypatch.setattr("convdispatch.train.data.FASHION_FOLDERS", (tmp_path / "none",))
    with pytest.raises(InvalidArgument, match="Debian's dataset-fashion-mnist"):
        load("fashion-mnist")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InvalidArgument, match="pip install scikit-learn"):
        load("digits")


def test_fashion_mnist():
    if "fashion-mnist" not in _available():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    data = load("fashion-mnist")
    assert data.images.shape == (60000, 1, 28, 28)
    assert data.test_labels.shape == (10000,)
    assert data.classes[9] == "Ankle boot"


def test_digits():
    if "digits" not in _available():
        pytest.skip("scikit-learn is not installed")
    data = load("digits")
    assert len(data.images) + len(data.test_images) == 1797
    assert data.images.max() == data.largest == 16


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path):
    write_idx(tmp_path)
    common = ["train", str(tmp_path), "--epochs", "2", "--batch", "24", "--lr", "0.1"]
    done = run_cli(*common, "--curve", str(tmp_path / "losses.csv"), "--json", status=0)
    report = json.loads(done.stdout)
    assert len(report["losses"]) == 6
    lines = (tmp_path / "losses.csv").read_text().splitlines()
    assert lines[0] == "step,loss"
    assert len(lines) == 7
    done = run_cli(*common)
    assert "accuracy" in done.output
    assert "│" in done.output
    done = run_cli("train", str(tmp_path / "nowhere"), status=1)
    assert done.output.strip().startswith("Error: ")
