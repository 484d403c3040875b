"""The inference form: what it fuses, what it must not, its memory, layouts, queues, and what it refuses."""

import time

import numpy as np
import pyopencl as cl
import pytest

from convdispatch import inference, nn
from convdispatch.api import InvalidArgument
from convdispatch.device import runtime
from convdispatch.inference.fuse import fuse
from convdispatch.inference.graph import Ref
from convdispatch.inference.layout import relayout
from convdispatch.inference.trace import trace
from convdispatch.nn import functional
from convdispatch.tensor import Tensor

C = 8


class Small(nn.Module):
    """A residual block, a normalisation, two branches concatenated, flattened pictures, a softmax."""

    def __init__(self, layout="nchw"):
        common = {"layout": layout}
        self.axis = 1 if layout == "nchw" else 3
        self.stem = nn.Conv2d(3, C, 3, stride=2, padding=1, **common)
        self.pool = nn.MaxPool2d(3, 2, 1, **common)
        self.conv1 = nn.Conv2d(C, C, 3, padding=1, bias=False, **common)
        self.bn1 = nn.BatchNorm2d(C, activation="relu", **common)
        self.conv2 = nn.Conv2d(C, C, 3, padding=1, **common)
        self.bn2 = nn.BatchNorm2d(C, **common)
        self.shortcut = nn.Conv2d(C, C, 1, **common)
        self.norm = nn.LRN(5, **common)
        self.one = nn.Conv2d(C, 4, 1, activation="relu", **common)
        self.three = nn.Conv2d(C, 12, 3, padding=1, **common)
        self.drop = nn.Dropout(0.5)
        self.flatten = nn.Flatten(layout=layout)
        self.fc = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.stem(x)))
        y = self.bn2(self.conv2(self.bn1(self.conv1(x))))
        x = self.norm(functional.relu(y + self.shortcut(x)))
        x = functional.concatenate([self.one(x), self.three(x)], self.axis)
        return functional.softmax(self.fc(self.drop(self.flatten(x))))


def shaken(net):
    random = np.random.default_rng(0)
    for part in (net.bn1, net.bn2):
        part.running_mean = Tensor.from_numpy(random.standard_normal(C, dtype=np.float32))
        part.running_var = Tensor.from_numpy(random.uniform(0.5, 2, C).astype(np.float32))
    net.eval()
    return net


def picture(mb, layout="nchw", seed=1):
    shape = (mb, 3, 16, 16) if layout == "nchw" else (mb, 16, 16, 3)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture(scope="module")
def nets():
    return {layout: shaken(Small(layout)) for layout in ("nchw", "nhwc")}


@pytest.mark.parametrize("traced", ["nchw", "nhwc"])
@pytest.mark.parametrize("mb", [1, 3])
@pytest.mark.parametrize(("layout", "queues"), [("nchw", 1), ("nhwc", 1), ("nchw", 3), ("nhwc", 3), (None, None)])
def test_same_result_as_the_net(nets, all_forms, traced, mb, layout, queues):
    net = nets[traced]
    built = inference.build(net, picture(mb, traced).shape, layout=layout, queues=queues)
    for seed in (1, 2):  # a second run finds its memory used
        x = picture(mb, traced, seed)
        expected = net(Tensor.from_numpy(x)).numpy()
        np.testing.assert_allclose(built(x), expected, rtol=2e-5, atol=1e-6)
        result = built(Tensor.from_numpy(x))
        np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=1e-6)
    assert built.nbytes < built.unshared_nbytes
    if layout and queues:
        assert built.layout == layout
        assert built.queues <= queues
    else:
        assert len(built.tried) >= 2


@pytest.fixture
def gated(nets, queue):
    """``(net, its result, gate, picture)``: the net's queue does nothing before ``gate()``."""
    built = inference.build(nets["nchw"], picture(1).shape, layout="nchw", queues=1)
    expected = built(picture(1))
    event = cl.UserEvent(queue.context)
    cl.enqueue_barrier(built._program.queue, wait_for=[event])

    def gate():
        if event.command_execution_status != cl.command_execution_status.COMPLETE:
            event.set_status(cl.command_execution_status.COMPLETE)

    yield built, expected, gate, picture(1)
    gate()


def test_a_tensor_of_another_queue_may_go_while_it_is_copied(gated):
    """Its memory serves the other queue's next work, which must wait for the copy."""
    built, expected, gate, x = gated
    other = cl.CommandQueue(built._program.queue.context)
    given = Tensor.from_numpy(x, other)
    place = given.base_data.int_ptr
    result = built(given)
    del given
    again = Tensor.empty(x.shape, np.float32, other)
    assert again.base_data.int_ptr == place
    written = cl.enqueue_fill_buffer(other, again.base_data, np.float32(9), 0, x.nbytes)
    other.flush()
    limit = time.monotonic() + 0.5
    while time.monotonic() < limit:
        assert written.command_execution_status != cl.command_execution_status.COMPLETE
        time.sleep(0.01)
    gate()
    np.testing.assert_array_equal(result.numpy(), expected)


def test_a_tensor_of_another_queue_is_read_when_it_is_written(nets, queue):
    built = inference.build(nets["nchw"], picture(1).shape, layout="nchw", queues=1)
    x, other, gate = picture(1), cl.CommandQueue(queue.context), cl.UserEvent(queue.context)
    given = Tensor.from_numpy(np.zeros_like(x), other)
    cl.enqueue_barrier(other, wait_for=[gate])
    written = cl.enqueue_copy(other, given.base_data, x, is_blocking=False)  # its end waits: it holds x
    other.flush()
    result = built(given)
    gate.set_status(cl.command_execution_status.COMPLETE)
    np.testing.assert_array_equal(result.numpy(), built(x))
    written.wait()


def test_calls_with_tensors_of_another_queue_do_not_wait(gated):
    built, expected, gate, x = gated
    given = Tensor.from_numpy(x, cl.CommandQueue(built._program.queue.context))
    results = [built(given) for _ in range(3)]
    gate()
    for result in results:
        np.testing.assert_array_equal(result.numpy(), expected)


def test_what_is_fused(nets):
    graph = fuse(trace(nets["nchw"], [(1, 3, 16, 16)], np.float32, runtime.queue()))
    assert [node.name for node in graph.nodes] == [
        "convolution", "max_pool", "convolution", "convolution", "convolution", "local_response_norm", "convolution",
        "convolution", "concatenate", "convolution", "softmax",
    ]  # fmt: skip
    with_residual = [node for node in graph.nodes if isinstance(node.kwargs.get("residual"), Ref)]
    assert [node.kwargs["activation"] for node in with_residual] == ["relu"]


def test_a_value_that_others_read_stays(nets):
    conv, bn = nets["nchw"].conv2, nets["nchw"].bn2

    def net(x):
        y = conv(x)
        return bn(y) + functional.relu(y)

    graph = fuse(trace(net, [(1, C, 4, 4)], np.float32, runtime.queue()))
    assert [node.name for node in graph.nodes] == ["convolution", "apply"]
    x = np.random.default_rng(0).standard_normal((1, C, 4, 4), dtype=np.float32)
    built = inference.build(net, x.shape, layout="nhwc", queues=2)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_turning_a_graph_twice_needs_reorders_only_at_its_ends(nets):
    graph = fuse(trace(nets["nchw"], [(2, 3, 16, 16)], np.float32, runtime.queue()))
    turned = relayout(graph, "nhwc")
    names = [node.name for node in turned.nodes]
    assert names[0] == "reorder"
    assert names.count("reorder") == 2  # the input's, and the one before the pictures are flattened
    assert relayout(graph, "nchw").nodes[0].name == "convolution"


def test_parts_of_a_concatenation_are_written_in_place(nets):
    built = inference.build(nets["nchw"], (1, 3, 16, 16), layout="nchw", queues=1)
    copied = inference.build(nets["nchw"], (2, 3, 16, 16), layout="nchw", queues=1)
    assert built.commands < copied.commands


def test_weights_are_read_when_built(nets):
    conv = nn.Conv2d(3, 4, 3)
    x = picture(1)
    built = inference.build(conv, x.shape, layout="nchw", queues=1)
    before = built(x)
    conv.weight.write(np.zeros(conv.weight.shape, np.float32))
    np.testing.assert_array_equal(built(x), before)


def test_refusals(nets):
    net = nets["nchw"]
    with pytest.raises(InvalidArgument, match="layout must be None or one of nchw, nhwc, got 'nwhc'"):
        inference.build(net, (1, 3, 16, 16), layout="nwhc")
    with pytest.raises(InvalidArgument, match="queues must be None or at least 1, got 0"):
        inference.build(net, (1, 3, 16, 16), queues=0)
    built = inference.build(nn.Conv2d(3, 4, 3), (1, 3, 16, 16), layout="nchw", queues=1)
    with pytest.raises(InvalidArgument, match=r"built for \(1, 3, 16, 16\) float32, got \(2, 3, 16, 16\) float32"):
        built(picture(2))
    with pytest.raises(InvalidArgument, match="takes 1 inputs, got 2"):
        built(picture(1), picture(1))
    with pytest.raises(InvalidArgument, match="no operation of convdispatch"):
        inference.build(lambda x: x.copy(), (1, 3, 4, 4))


def test_a_net_in_training_is_built_as_it_is_used_and_stays_in_training():
    net = shaken(Small())
    x = picture(2)
    expected = net(Tensor.from_numpy(x)).numpy()
    net.train()
    built = inference.build(net, x.shape, layout="nchw", queues=1)
    assert net.training
    np.testing.assert_allclose(built(x), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("all_forms")
def test_a_choice_that_is_recalled_builds_one_form(nets, tmp_path, monkeypatch):
    """For the same net, device and records; a file that is damaged, and a policy in force, time all forms again."""
    from convdispatch.api import policy
    from convdispatch.inference import judging, remembered

    monkeypatch.setattr(remembered, "_file", lambda key: tmp_path / key)
    monkeypatch.setattr(judging, "_alone", lambda form, n: [1.0 if form.layout == "nhwc" else 2.0] * n)
    monkeypatch.setattr(judging, "_in_a_row", judging._alone)
    x = picture(1)
    first = inference.build(nets["nchw"], x.shape, recall=True)
    assert len(first.tried) >= 2
    again = inference.build(nets["nchw"], x.shape, recall=True)
    assert len(again.tried) == 1
    assert (again.layout, again.queues) == (first.layout, first.queues)
    np.testing.assert_array_equal(again(x), first(x))
    assert len(inference.build(nets["nchw"], (2, 3, 16, 16), recall=True).tried) >= 2
    assert len(inference.build(nets["nchw"], x.shape, recall=True, for_="throughput").tried) >= 2
    with policy(deterministic=True):
        assert len(inference.build(nets["nchw"], x.shape, recall=True).tried) >= 2
    for text in (
        '{"layout": "sideways", "queues": 1, "votes": 2}',
        '{"layout": "nhwc", "queues": 1.5, "votes": 2}',
        "[",
    ):
        for file in tmp_path.iterdir():
            file.write_text(text)
        assert len(inference.build(nets["nchw"], x.shape, recall=True).tried) >= 2


@pytest.mark.usefixtures("all_forms")
def test_what_was_measured_under_load_does_not_stay(nets, tmp_path, monkeypatch):
    """One noisy measurement settles nothing, two that agree do for a while, two that differ do not; a calm one does."""
    from convdispatch.inference import judging, remembered

    monkeypatch.setattr(remembered, "_file", lambda key: tmp_path / key)
    ms = {"nchw": [1.0, 9.0, 9.0], "nhwc": [2.0, 9.0, 9.0]}
    monkeypatch.setattr(judging, "_alone", lambda form, n: ms[form.layout])
    shape = (1, 3, 16, 16)

    def built():
        net = inference.build(nets["nchw"], shape, recall=True)
        return net.layout, len(net.tried) > 1

    assert [built() for _ in range(2)] == [("nchw", True)] * 2
    assert [built() for _ in range(remembered.NOISY_RECALLS)] == [("nchw", False)] * remembered.NOISY_RECALLS
    ms["nchw"][0] = 4.0  # it was wrong
    assert [built() for _ in range(2)] == [("nhwc", True)] * 2
    assert built() == ("nhwc", False)
    ms["nchw"], ms["nhwc"] = [1.0] * 3, [2.0] * 3
    for file in tmp_path.iterdir():
        file.unlink()
    assert [built() for _ in range(20)] == [("nchw", True)] + [("nchw", False)] * 19


@pytest.mark.parametrize(
    ("series", "best", "agreed"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], 0, True),
        ([[1.0, 2.0], [1.9, 1.5]], 0, False),
        ([[1.0, 1.01], [1.02, 1.01]], 1, True),  # as good as one: the favourite stays
        ([[1.0, 1.1], [1.0, 1.1]], 0, True),
    ],
)
def test_two_series_agree_or_not(monkeypatch, series, best, agreed):
    from convdispatch.inference import judging

    taken = iter(series)
    monkeypatch.setattr(judging, "_alone", lambda form, n: [1.0])
    monkeypatch.setattr(judging, "_series", lambda *_: [[ms] for ms in next(taken)])
    verdict = judging.judge(["a", "b"], "latency", favourite=1)
    assert (verdict.best, verdict.agreed) == (best, agreed)


class Dense(nn.Module):
    """Every layer reads all before it: joined results are joined again."""

    def __init__(self):
        self.layers = [nn.Conv2d(16 + 32 * i, 32, 3, padding=1) for i in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = functional.concatenate([x, layer(x)])
        return x, functional.concatenate([x, x])


@pytest.mark.parametrize("mb", [1, 2])
def test_a_dense_block_is_one_memory(queue, mb):
    """One image with channels first: only what came from outside is copied, once. Several images lie apart."""
    net = Dense().eval()
    x = np.random.default_rng(0).standard_normal((mb, 16, 8, 8), np.float32)
    built = inference.build(net, x.shape, queue=queue, layout="nchw", queues=1)
    wanted = net(Tensor.from_numpy(x, queue))
    for got, want in zip(built(x), wanted, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
    names = [layer.name for layer in built.layers]
    copied = [names[step] for step in built.steps].count("concatenate")
    assert (copied == 3) if mb == 1 else (copied > 3)
