"""The inference form: what it fuses, what it must not, its memory, layouts, and what it refuses."""

import threading
import time

import numpy as np
import pyopencl as cl
import pytest
import small_net

from convdispatch import inference, nn
from convdispatch.api import InvalidArgument
from convdispatch.device import runtime
from convdispatch.inference.graph import Ref
from convdispatch.inference.passes.fusion import fuse
from convdispatch.inference.passes.layout import relayout, reorder
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
@pytest.mark.parametrize("layout", ["nchw", "nhwc", None])
def test_same_result_as_the_net(nets, all_forms, thinned, traced, mb, layout):
    thinned((traced == "nhwc") ^ (mb == 3) ^ (layout is None))
    net = nets[traced]
    built = inference.build(net, picture(mb, traced).shape, layout=layout)
    for seed in (1, 2):  # a second run finds its memory used
        x = picture(mb, traced, seed)
        expected = net(Tensor.from_numpy(x)).numpy()
        np.testing.assert_allclose(built(x), expected, rtol=2e-5, atol=1e-6)
        result = built(Tensor.from_numpy(x))
        np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=1e-6)
    assert built._program.arena.size < sum(slot.size for slot in built._program.arena.offsets)
    if layout:
        assert built.layout == layout
    else:
        assert len(built.tried) >= 2


@pytest.fixture
def gated(nets, queue):
    """``(net, its result, gate, picture)``: the net's queue does nothing before ``gate()``."""
    built = inference.build(nets["nchw"], picture(1).shape, layout="nchw")
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
    built = inference.build(nets["nchw"], picture(1).shape, layout="nchw")
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
    built = inference.build(net, x.shape, layout="nhwc")
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_turning_a_graph_twice_needs_reorders_only_at_its_ends(nets):
    graph = fuse(trace(nets["nchw"], [(2, 3, 16, 16)], np.float32, runtime.queue()))
    turned = relayout(graph, "nhwc")
    names = [node.name for node in turned.nodes]
    assert names[0] == "reorder"
    assert names.count("reorder") == 2  # the input's, and the one before the pictures are flattened
    assert relayout(graph, "nchw").nodes[0].name == "convolution"


def test_parts_of_a_concatenation_are_written_in_place(nets):
    built = inference.build(nets["nchw"], (1, 3, 16, 16), layout="nchw")
    copied = inference.build(nets["nchw"], (2, 3, 16, 16), layout="nchw")
    assert built.commands < copied.commands


def test_weights_are_read_when_built(nets):
    conv = nn.Conv2d(3, 4, 3)
    x = picture(1)
    built = inference.build(conv, x.shape, layout="nchw")
    before = built(x)
    conv.weight.write(np.zeros(conv.weight.shape, np.float32))
    np.testing.assert_array_equal(built(x), before)


def test_refusals(nets):
    net = nets["nchw"]
    with pytest.raises(InvalidArgument, match="layout must be None or one of nchw, nhwc, got 'nwhc'"):
        inference.build(net, (1, 3, 16, 16), layout="nwhc")
    built = inference.build(nn.Conv2d(3, 4, 3), (1, 3, 16, 16), layout="nchw")
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
    built = inference.build(net, x.shape, layout="nchw")
    assert net.training
    np.testing.assert_allclose(built(x), expected, rtol=2e-5, atol=1e-6)


class Dense(nn.Module):
    """Every layer reads all before it: joined results are joined again, or all parts at each layer if ``flat``."""

    def __init__(self, flat=False):
        self.flat = flat
        self.layers = [nn.Conv2d(16 + 32 * i, 32, 3, padding=1) for i in range(3)]

    def forward(self, x):
        parts = [x]
        for layer in self.layers:
            parts.append(layer(x))
            x = functional.concatenate(parts if self.flat else [x, parts[-1]])
        return x, functional.concatenate([x, x])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mb", [1, 2])
def test_a_dense_block_is_one_memory(queue, mb, flat):
    """One image with channels first: only what came from outside is copied, once. Several images lie apart."""
    net = Dense(flat).eval()
    x = np.random.default_rng(0).standard_normal((mb, 16, 8, 8), np.float32)
    built = inference.build(net, x.shape, queue=queue, layout="nchw")
    wanted = net(Tensor.from_numpy(x, queue))
    for got, want in zip(built(x), wanted, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
    names = [layer.name for layer in built.layers]
    copied = [names[step] for step in built.steps].count("concatenate")
    assert (copied == 3) if mb == 1 else (copied > 3)


@pytest.mark.parametrize(("layout", "mb", "flat"), [("nhwc", 1, False), ("nchw", 2, True)])
def test_a_dense_block_that_is_read_element_by_element_grows_in_place(queue, layout, mb, flat):
    """Joined results are read with gaps between their rows; each part is copied once, the whole has no gaps."""
    axis = 1 if layout == "nchw" else 3
    layers = [nn.Conv2d(8 + 4 * i, 4, 3, padding=1, layout=layout) for i in range(3)]

    def net(x):
        parts = [x]
        for layer in layers:
            parts.append(layer(functional.relu(x + 0.5)))
            x = functional.concatenate(parts if flat else [x, parts[-1]], axis)
        return functional.max_pool(x, 2, layout=layout)

    shape = (mb, 8, 6, 6) if layout == "nchw" else (mb, 6, 6, 8)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    built = inference.build(net, x.shape, queue=queue, layout=layout)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x, queue)).numpy(), rtol=1e-4, atol=1e-5)
    names = [layer.name for layer in built.layers]
    assert [names[step] for step in built.steps].count("concatenate") == 4  # x and what each layer adds


@pytest.mark.parametrize(
    "shape",
    [(1, 3, 4, 4), (2, 3, 7, 9), (1, 2, 5, 5), (3, 8, 3, 11), (1, 4, 33, 17), (1, 3, 3, 5), (1, 9, 4, 4), (2, 1, 4, 4)],
)
def test_pictures_are_reordered(queue, shape):
    """Sixteen pixels at a time, more than one work item's, ends that overlap; fewer pixels, more channels, one."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    got = reorder(Tensor.from_numpy(x, queue), (0, 2, 3, 1)).numpy()
    np.testing.assert_array_equal(got, x.transpose(0, 2, 3, 1))


def test_rows_are_joined(queue):
    """Whole vectors, ends that overlap, parts too short for them; more rows than one work item takes."""
    rng = np.random.default_rng(0)
    for rows, widths in (
        (7, (16, 32)),
        (40, (16, 48, 17)),
        (1100, (31, 16)),
        (40, (16, 15)),
        (20, (64,) * 9),
        (40, (17,) * 20),
    ):
        parts = [rng.standard_normal((rows, width), np.float32) for width in widths]
        got = functional.concatenate([Tensor.from_numpy(part, queue) for part in parts], 1).numpy()
        np.testing.assert_array_equal(got, np.concatenate(parts, 1))


def test_large_buffers_hold_what_they_are_given(queue):
    """On large pages or not: a content is copied, also while the queue waits for something."""
    from convdispatch.device.memory import allocator

    content = np.arange(allocator.HUGE_BYTES // 4 + 3, dtype=np.float32)
    gate = cl.UserEvent(queue.context)
    other = cl.CommandQueue(queue.context)
    cl.enqueue_barrier(other, wait_for=[gate])
    made = runtime.fresh(other, 0, content)
    gate.set_status(cl.command_execution_status.COMPLETE)
    got = np.empty_like(content)
    cl.enqueue_copy(queue, got, made)
    np.testing.assert_array_equal(got, content)


def test_weights_that_are_computed_on_another_queue_are_waited_for(queue, monkeypatch):
    """A net's weights may be computed on its queue, and are packed on the form's, which knows nothing of it."""
    made = small_net.net(queue)
    made.eval()
    x = small_net.normal(1, 3, 13, 13)
    expected = inference.build(made, x.shape, layout="nchw")(x)
    fused, opened = inference.building.traced_and_fused, []

    def late(*given):
        """What computes weights is done half a second after the form's planning has begun."""
        graph = fused(*given)
        graph.background.end()
        gate = cl.UserEvent(queue.context)
        weights = {node.kwargs["w"] for node in graph.nodes if "w" in node.kwargs}
        right = {w: w.copy() for w in weights}
        for w in weights:
            cl.enqueue_fill_buffer(queue, w.base_data, np.float32(1e9), 0, w.nbytes)
        queue.finish()
        cl.enqueue_barrier(queue, wait_for=[gate])
        for w in weights:
            cl.enqueue_copy(queue, w.base_data, right[w].base_data, byte_count=w.nbytes)
        queue.flush()
        opened.append(threading.Timer(0.5, gate.set_status, [cl.command_execution_status.COMPLETE]))
        opened[0].start()
        return graph

    monkeypatch.setattr(inference.building, "traced_and_fused", late)
    form = inference.build(made, x.shape, layout="nchw")
    opened[0].join()
    queue.finish()
    np.testing.assert_array_equal(form(x), expected)
