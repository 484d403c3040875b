"""EfficientNet-lite0: geometry, weights and logits."""

import importlib.util
import pickle

import convdispatch_amx
import numpy as np
import pytest
from checking import compare

from convdispatch.api import policy
from convdispatch.api.cpu import lacking
from convdispatch.inference import problems as problems_of
from convdispatch.models.efficientnet import EfficientNetLite0
from convdispatch.tensor import Tensor
from examples import example

CLASSIFY = example("classify")
needs_weights = pytest.mark.skipif(importlib.util.find_spec(CLASSIFY.WEIGHTS[0]) is None, reason="needs the extra demo")


@pytest.mark.parametrize("layout", ["nchw", pytest.param("nhwc", marks=pytest.mark.full)])
def test_geometry(queue, layout):
    net = EfficientNetLite0(layout=layout, queue=queue)
    # 4,652,008 are published; of a batch norm's scale and shift folding leaves one number a channel, and there are
    # 21,008 channels.
    assert sum(parameter.size for parameter in net.parameters()) == 4_652_008 - 21_008
    shape = (1, 3, 224, 224) if layout == "nchw" else (1, 224, 224, 3)
    assert net(Tensor.from_numpy(np.zeros(shape, np.float32), queue)).shape == (1, 1000)
    problems = problems_of(net, shape, queue=queue, layout=layout)
    assert len(problems) == 50
    assert sum(problem.depthwise for problem in problems) == 16
    assert sum(problem.residual for problem in problems) == 9
    assert sum(problem.kh == 5 for problem in problems) == 9
    strided = [problem for problem in problems if problem.sh == 2]
    assert [(p.kh, p.ph, p.ph_r, p.ih, p.oh) for p in strided] == [
        (3, 0, 1, 224, 112),
        (3, 0, 1, 112, 56),
        (5, 1, 2, 56, 28),
        (3, 0, 1, 28, 14),
        (5, 1, 2, 14, 7),
    ]
    assert 0.75e9 < sum(problem.flops for problem in problems) < 0.8e9


def test_a_weights_file_runs_nothing(tmp_path):
    path = tmp_path / "net.pth"
    path.write_bytes(b"\x80\x02cos\nsystem\n(X\x05\x00\x00\x00falsetR.")
    with pytest.raises(pickle.UnpicklingError, match=r"names tensors alone, got os\.system"):
        CLASSIFY.read_weights(path)


@needs_weights
def test_every_weight_of_the_checkpoint_is_used():
    state = CLASSIFY.read_weights(CLASSIFY.package_file(*CLASSIFY.WEIGHTS))
    assert len(CLASSIFY.folded(state)) == 100
    read = [name for name in state if name.endswith(("_conv.weight", "_stem.weight", "_head.weight", "_fc.weight"))]
    assert len(read) == 50
    for missing in ("_bn1.weight", "_fc.bias"):
        with pytest.raises(KeyError, match=missing):
            CLASSIFY.folded({name: array for name, array in state.items() if name != missing})


@needs_weights
@pytest.mark.parametrize("layout", ["nchw", pytest.param("nhwc", marks=pytest.mark.full)])
@pytest.mark.parametrize("solver", [None, pytest.param("[!a]*", marks=pytest.mark.full)], ids=["chosen", "vectors"])
def test_logits_equal_torchs(queue, layout, solver):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 224, 224)).astype(np.float32)
    expected = torch_logits(torch, CLASSIFY.read_weights(CLASSIFY.package_file(*CLASSIFY.WEIGHTS)), x)
    given = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    with policy(solver=solver):
        got = CLASSIFY.pretrained(layout, queue)(Tensor.from_numpy(given, queue)).numpy()
    # Matrix registers make use of what float32 promises, 1e-5 a layer; vectors stay well below it.
    registers = solver is None and lacking(*convdispatch_amx.NEEDED[False]) is None
    compare(got, expected, 5e-5 if registers else 2e-5)


def torch_logits(torch, state: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The net in torch, from the checkpoint's own names: batch norms not folded, pads computed per size."""
    import torch.nn.functional as F  # noqa: N812

    weights = {name: torch.from_numpy(array) for name, array in state.items()}

    def unit(x, conv, norm, stride=1, groups=1, bounded=True):
        w = weights[conv + ".weight"]
        size, kernel = x.shape[-1], w.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.conv2d(F.pad(x, (total // 2, total - total // 2) * 2), w, stride=stride, groups=groups)
        mean, variance, scale, shift = (
            weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        x = F.batch_norm(x, mean, variance, scale, shift, eps=1e-3)
        return x.clamp(0, 6) if bounded else x

    with torch.no_grad():
        y = unit(torch.from_numpy(x), "_conv_stem", "_bn0", 2)
        for i in range(16):
            name, before = f"_blocks.{i}.", y
            if name + "_expand_conv.weight" in weights:
                y = unit(y, name + "_expand_conv", name + "_bn0")
            y = unit(y, name + "_depthwise_conv", name + "_bn1", 2 if i in (1, 3, 5, 11) else 1, y.shape[1])
            y = unit(y, name + "_project_conv", name + "_bn2", bounded=False)
            y = y + before if y.shape == before.shape else y
        y = unit(y, "_conv_head", "_bn1").mean((2, 3))
        return (y @ weights["_fc.weight"].T + weights["_fc.bias"]).double().numpy()
