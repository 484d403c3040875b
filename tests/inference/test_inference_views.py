"""Views of pictures in the other layout: the same elements, and no copies between a norm over channels and layers."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.device import runtime
from convdispatch.elementwise import apply, reduce
from convdispatch.elementwise.tensor import Tensor
from convdispatch.inference.building import traced_and_fused
from convdispatch.inference.graph import Ref, Value
from convdispatch.inference.passes.layout import relayout
from convdispatch.inference.passes.views import in_layout, of_original, strides_of
from convdispatch.nn import functional

_ORDER = {"nhwc": (0, 2, 3, 1), "nchw": (0, 3, 1, 2)}
C, SIZE = 24, 6


def seen(memory: np.ndarray, ref: Ref) -> np.ndarray:
    """What a view reads of its value's memory."""
    flat = memory.reshape(-1).view(np.uint8)[ref.offset :].view(memory.dtype)
    return np.lib.stride_tricks.as_strided(flat, ref.shape, strides_of(ref))


def random_view(draw: random.Random, value: Value) -> Ref:
    """A view by random steps: axes permuted, sliced, split and joined, as ``permute``, ``split`` and ``view`` make."""
    array = np.zeros(value.shape, value.dtype)
    view = array
    for _ in range(draw.randint(0, 4)):
        kind, axis = draw.choice(["permute", "slice", "split", "join", "expand"]), draw.randrange(view.ndim)
        if kind == "permute":
            view = view.transpose(draw.sample(range(view.ndim), view.ndim))
        elif kind == "slice":
            start = draw.randrange(view.shape[axis])
            view = view[(slice(None),) * axis + (slice(start, draw.randint(start + 1, view.shape[axis])),)]
        elif kind == "split" and view.shape[axis] % 2 == 0 and view.ndim < 6:
            shape = (*view.shape[:axis], 2, view.shape[axis] // 2, *view.shape[axis + 1 :])
            strides = (*view.strides[:axis], view.strides[axis] * (view.shape[axis] // 2), *view.strides[axis:])
            view = np.lib.stride_tricks.as_strided(view, shape, strides)
        elif (
            kind == "join"
            and axis + 1 < view.ndim
            and view.strides[axis] == view.strides[axis + 1] * view.shape[axis + 1]
        ):
            shape = (*view.shape[:axis], view.shape[axis] * view.shape[axis + 1], *view.shape[axis + 2 :])
            view = np.lib.stride_tricks.as_strided(view, shape, (*view.strides[:axis], *view.strides[axis + 1 :]))
        elif kind == "expand" and view.ndim < 6:
            view = np.broadcast_to(view, (2, *view.shape))
    offset = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    return Ref(value, view.shape, None if view.flags.c_contiguous else view.strides, offset)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_view_in_the_other_layout_reads_the_same_elements(layout):
    draw, mapped = random.Random(5), 0
    for _ in range(400):
        shape = tuple(draw.choice([1, 2, 3, 4, 6]) for _ in range(4))
        value = Value(shape, np.dtype(np.int32))
        ref, memory = random_view(draw, value), np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        picture = Value(tuple(shape[a] for a in _ORDER[layout]), value.dtype)
        turned = in_layout(ref, picture, layout)
        if turned is not None:
            mapped += 1
            turned_memory = np.ascontiguousarray(memory.transpose(_ORDER[layout]))
            np.testing.assert_array_equal(seen(turned_memory, turned), seen(memory, ref), err_msg=f"{ref}")
            assert (turned.strides is None) == seen(turned_memory, turned).flags.c_contiguous
    assert mapped > 200


def test_a_view_of_a_copy_reads_the_same_elements_of_what_was_copied():
    draw, mapped = random.Random(6), 0
    for _ in range(400):
        shape = tuple(draw.choice([1, 2, 3, 4, 6]) for _ in range(4))
        value = Value(shape, np.dtype(np.int32))
        original, memory = random_view(draw, value), np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        copy = np.ascontiguousarray(seen(memory, original))
        ref = random_view(draw, Value(original.shape, value.dtype))
        found = of_original(ref, original)
        if found is not None:
            mapped += 1
            np.testing.assert_array_equal(seen(memory, found), seen(copy, ref), err_msg=f"{original} {ref}")
    assert mapped > 200


def layers(seed: int) -> Callable[..., Tensor]:
    """A block as ConvNeXt V2's: a depthwise layer, a norm over channels, two pointwise layers with a norm of the
    channels' lengths between them; then a copy in channels last, a layer that reads it, and the shortcut."""
    numbers = np.random.default_rng(seed)

    def vector(*shape: int) -> Tensor:
        return Tensor.from_numpy(numbers.standard_normal(shape, dtype=np.float32))

    first, wide, narrow = nn.Conv2d(C, C, 3, padding=1, groups=C), nn.Conv2d(C, 2 * C, 1), nn.Conv2d(2 * C, C, 1)
    last = nn.Conv2d(C, C, 1)
    scale, shift, factor = vector(C), vector(C), vector(2 * C, 1, 1)

    def net(x: Tensor) -> Tensor:
        y = functional.layer_norm(first(x).transpose(0, 2, 3, 1), 3, scale, shift).transpose(0, 3, 1, 2)
        y = functional.activate(wide(y), "gelu")
        lengths = apply("sqrt(x)", x=reduce("sum", "square(x)", (2, 3), keepdims=True, x=y))
        mean = functional.mean(lengths, (1,), keepdims=True)
        y = narrow(apply("x + x * f * g / (m + 0.001)", x=y, f=factor, g=lengths, m=mean))
        copy = functional.contiguous(y.transpose(0, 2, 3, 1))
        return last(copy.transpose(0, 3, 1, 2)) + x

    return net


def test_norms_over_channels_read_and_write_pictures_of_the_other_layout():
    net, shape = layers(1), (1, C, SIZE, SIZE)
    graph = traced_and_fused(net, [shape], np.float32, runtime.queue(), None)
    turned = relayout(graph, "nhwc")
    reordered = [node.name for node in turned.nodes if node.name in ("reorder", "contiguous")]
    assert len(reordered) == 2, "the input's and the result's"
    assert all(ref.strides is None for node in turned.nodes for ref in node.refs if node.name != "reorder")
    assert any(ref.strides is not None for node in graph.nodes for ref in node.refs)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_block_with_norms_over_channels_is_right_in_each_layout(layout):
    net, shape = layers(2), (2, C, SIZE, SIZE)
    x = np.random.default_rng(3).standard_normal(shape, dtype=np.float32)
    built = inference.build(net, shape, layout=layout)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-4)


def test_an_activation_of_a_view_is_the_convolutions_own():
    """As in a transformer's depthwise layer: pictures to tokens, an activation, and tokens to pictures again."""
    first, second = nn.Conv2d(C, C, 3, padding=1, groups=C), nn.Conv2d(C, C, 1)

    def net(x: Tensor) -> Tensor:
        y = functional.activate(first(x).transpose(0, 2, 3, 1), "gelu")
        return second(y.transpose(0, 3, 1, 2))

    shape = (2, C, SIZE, SIZE)
    graph = traced_and_fused(net, [shape], np.float32, runtime.queue(), None)
    assert [node.name for node in graph.nodes] == ["convolution", "convolution"]
    assert graph.nodes[1].kwargs["x"].is_whole
    x = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    built = inference.build(net, shape, layout="nhwc")
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [lambda y: y[:, :2].transpose(0, 2, 3, 1), lambda y: y[:1, :, :1].expand(2, C, SIZE, SIZE).transpose(0, 2, 3, 1)],
)
def test_an_activation_of_some_elements_stays(change):
    first = nn.Conv2d(C, C, 1)

    def net(x: Tensor) -> Tensor:
        return functional.activate(change(first(x)), "relu")

    graph = traced_and_fused(net, [(2, C, SIZE, SIZE)], np.float32, runtime.queue(), None)
    assert [node.name for node in graph.nodes][-1] == "activate"
