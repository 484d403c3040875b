"""The nets: parameters as published, the same logits as PyTorch's operations, and the same again in inference form."""

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.api import InvalidArgument
from convdispatch.device import runtime
from convdispatch.inference.passes.fusion import fuse
from convdispatch.inference.trace import trace
from convdispatch.models import catalogue
from convdispatch.tensor import Tensor

# LeNet, AlexNet, VGG, ResNet: torchvision's counts and the papers'; OverFeat fast: 145 million (Sermanet et al.,
# table 1); GoogLeNet: Caffe's bvlc_googlenet without auxiliary classifiers.
PARAMETERS = {
    "lenet": 61_706,
    "alexnet": 61_100_840,
    "overfeat": 145_920_872,
    "vgg_a": 132_863_336,
    "vgg16": 138_357_544,
    "googlenet": 6_998_552,
    "resnet50": 25_557_032,
}
FUSED = {
    "lenet": {"convolution": 5, "max_pool": 2},
    "vgg_a": {"convolution": 11, "max_pool": 5},
    "resnet50": {"convolution": 54, "max_pool": 1, "adaptive_avg_pool": 1},
}


def full_only(name, *large):
    return pytest.param(name, marks=[pytest.mark.full] if name in large else [])


def shape_of(net, layout="nchw", mb=1, size=None):
    size = size or net.SIZE
    return (mb, net.CHANNELS, size, size) if layout == "nchw" else (mb, size, size, net.CHANNELS)


@pytest.mark.parametrize("name", [full_only(name, "overfeat", "vgg16") for name in PARAMETERS])
def test_parameters_are_the_published_ones(name):
    assert sum(p.size for p in catalogue.create(name).parameters()) == PARAMETERS[name]


def test_unknown_names_are_told_what_there_is():
    with pytest.raises(InvalidArgument, match=r"no net 'alexnext'; there are .*alexnet"):
        catalogue.create("alexnext")


@pytest.mark.parametrize("name", [full_only(name, "vgg_a") for name in FUSED])
def test_everything_that_follows_a_convolution_is_fused(name):
    net = catalogue.create(name)
    net.eval()
    graph = fuse(trace(net, [shape_of(net)], np.float32, runtime.queue()))
    names = [node.name for node in graph.nodes]
    assert {each: names.count(each) for each in names} == FUSED[name]


def shake(net, seed=0):
    """Statistics and scales that are not the trivial ones."""
    random = np.random.default_rng(seed)
    for _, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            size = module.weight.shape
            module.running_mean = Tensor.from_numpy(0.1 * random.standard_normal(size, dtype=np.float32))
            module.running_var = Tensor.from_numpy(random.uniform(0.5, 1.5, size).astype(np.float32))
            module.weight.write(random.uniform(0.5, 1.5, size).astype(np.float32))
            module.bias.write(0.1 * random.standard_normal(size, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "size", "mb"),
    [("lenet", None, 3), ("resnet50", 64, 2), ("alexnet", None, 1), ("googlenet", None, 1), ("vgg_a", None, 1)],
)
def test_logits_are_pytorchs_and_stay_so_in_inference_form(name, size, mb, request):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    from bench.torch_nets import to_torch

    if name != "lenet" and not request.config.getoption("--full"):
        pytest.skip("with --full only")
    net = catalogue.create(name)
    net.eval()
    shake(net)
    x = np.random.default_rng(1).standard_normal(shape_of(net, mb=mb, size=size), dtype=np.float32)
    with torch.no_grad():
        expected = to_torch(net).double().eval()(torch.from_numpy(x.astype(np.float64))).numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(net(Tensor.from_numpy(x)).numpy(), expected, atol=2e-4 * scale, rtol=0)
    for layout in ("nchw", "nhwc"):
        built = inference.build(net, x.shape, layout=layout)
        for _ in range(2):
            np.testing.assert_allclose(built(x), expected, atol=2e-4 * scale, rtol=0)
        assert built._program.arena.size < sum(slot.size for slot in built._program.arena.offsets)
