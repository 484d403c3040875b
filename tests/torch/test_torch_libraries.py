"""What libraries of models do around convolutions: parametrized weights, checkpoints, shards, workers, any size."""

import copy
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import convdispatch
import convdispatch.torch as ct
from convdispatch.api import policy


@pytest.fixture(autouse=True)
def full():
    """No call is answered by PyTorch while ours is compiled."""
    ct.reset_counters()
    with policy(tier="full"):
        yield
    ct.disable()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(got, wanted):
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()


def gradients(net, x):
    net.zero_grad()
    net(x).square().mean().backward()
    return [p.grad.clone() for p in net.parameters()]


def none_left():
    counted = ct.counters()
    assert counted["left"] == counted["compiling"] == 0, counted["reasons"]
    assert counted["ours"] > 0


@pytest.mark.parametrize("parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights_are_read_anew(parametrize):
    torch.manual_seed(0)
    net = nn.Sequential(parametrize(nn.Conv2d(3, 6, 3)), nn.ReLU(), parametrize(nn.ConvTranspose2d(6, 4, 2, 2))).eval()
    x = normal(2, 3, 8, 8)
    mine = copy.deepcopy(net)
    for _ in range(2):
        wanted = gradients(net, x)
        with ct.enable():
            got = gradients(mine, x)
            close(mine(x), net(x))
        for ours, theirs in zip(got, wanted, strict=True):
            close(ours, theirs)
        with torch.no_grad():
            for module in (net, mine):
                for weight, gradient in zip(module.parameters(), wanted, strict=True):
                    weight -= 0.1 * gradient / gradient.norm()
    none_left()


def test_checkpointing():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GELU(), nn.Conv2d(6, 6, 3, groups=2)), normal(2, 3, 9, 9)
    wanted = gradients(net, x)
    with ct.enable():
        net.zero_grad()
        checkpoint(net, x, use_reentrant=False).square().mean().backward()
    for weight, theirs in zip(net.parameters(), wanted, strict=True):
        close(weight.grad, theirs)
    none_left()
    assert ct.counters()["convolution"] >= 3  # forward, and again in backward what it needs


def test_ten_sizes_in_turn():
    net = nn.Conv2d(3, 4, 1).eval()
    with torch.no_grad():
        for size in (*range(4, 14), *range(13, 3, -1)):
            x = normal(1, 3, size, size, seed=size)
            wanted = net(x)
            with ct.enable():
                close(net(x), wanted)
    none_left()
    assert ct.counters()["ours"] == 20


class Filtered(Dataset):
    """Pictures that a worker filters, and how many calls it has left to PyTorch."""

    def __init__(self, size):
        self.w, self.size = normal(8, 8, 3, 3), size

    def __len__(self):
        return 4

    def __getitem__(self, place):
        y = nn.functional.conv2d(normal(1, 8, self.size, self.size, seed=place), self.w)
        return y[0], ct.counters()["left"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("size", [8, 96])
def test_workers_of_a_loader(size):
    """Forked from a process that has computed: the threads of OpenCL's runtime are not in the child, so its calls are
    PyTorch's."""
    data = Filtered(size)
    wanted = torch.stack([data[place][0] for place in range(4)])
    with ct.enable():
        close(torch.stack([data[place][0] for place in range(4)]), wanted)
        loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=300)
        pictures, counts = zip(*loader, strict=True)
    close(torch.cat(pictures), wanted)
    assert [each.tolist() for each in counts] == [[1, 2], [1, 2]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_conv_in_a_forked_child_says_why_it_computes_nothing():
    x, w = np.ones((1, 8, 64, 64), np.float32), np.ones((8, 8, 3, 3), np.float32)
    convdispatch.conv(x, w)
    child = os.fork()
    if not child:
        try:
            convdispatch.conv(x, w)
        except convdispatch.NoDevice as error:
            os._exit(0 if "forked" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _ddp(net, distributed):
    return nn.parallel.DistributedDataParallel(net)


def _fsdp(net, distributed):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


@pytest.mark.parametrize("wrap", [_ddp, _fsdp])
def test_sharded_models(group, wrap):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3, stride=2)), normal(2, 3, 11, 11)
    wanted = gradients(net, x)
    wrapped = wrap(net, group)
    with ct.enable():
        for _ in range(2):
            got = gradients(wrapped, x)
    for ours, theirs in zip(got, wanted, strict=True):
        close(getattr(ours, "full_tensor", lambda ours=ours: ours)(), theirs)
    none_left()


def test_speech_by_one_axis():
    """Thousands of samples, few channels, strides, groups."""
    torch.manual_seed(0)
    layers = nn.Conv1d(1, 16, 10, stride=5, bias=False), nn.GELU(), nn.Conv1d(16, 16, 4, padding=3, groups=16)
    net, x = nn.Sequential(*layers), normal(1, 1, 2000)
    wanted = net(x).detach()
    with ct.enable():
        close(net(x).detach(), wanted)
    none_left()


KERAS = """
import keras, numpy as np, torch
import convdispatch.torch as ct

def model():
    keras.utils.set_random_seed(0)
    made = keras.Sequential([
        keras.Input((12, 12, 3)),
        keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
        keras.layers.SeparableConv2D(8, 3),
        keras.layers.Conv2DTranspose(4, 2, strides=2),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ])
    made.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    return made

x = np.random.default_rng(0).standard_normal((16, 12, 12, 3)).astype("float32")
y = np.random.default_rng(1).standard_normal((16, 3)).astype("float32")

def trained():
    made = model()
    made.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return made.predict(x, verbose=0)

expected = trained()
with ct.enable():
    got = trained()
assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max(), np.abs(got - expected).max()
counted = ct.counters()
# Four convolutions: forward and backward in four steps, forward in one prediction.
assert counted["left"] == 0 and counted["convolution_backward"] == 16 and counted["convolution"] >= 20, counted
"""


def test_an_unchanged_keras_model_trains_and_predicts():
    """Keras 3 on its torch backend: every convolution is ours."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed (extra: peers)")
    finished = subprocess.run(
        [sys.executable, "-c", KERAS],
        capture_output=True,
        text=True,
        env=os.environ | {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu"},
        timeout=300,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
