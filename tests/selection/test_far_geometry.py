"""Padding, strides and dilations far beyond the input: what the few taps that meet it give, and never a crash."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest

import convdispatch as cd
from convdispatch import ConvProblem, InvalidArgument, InvalidProblem, MemoryLimit, NoSolver
from convdispatch.api import phase_count
from convdispatch.selection import reach

G = 1 << 31
CASES = {
    # sizes, taps, strides, dilations, padding of each axis
    "dilation and padding": ([9], [3], [1], [G], [G]),
    "many taps": ([9], [9], [1], [G // 4], [G]),
    "outputs between": ([9], [3], [G], [1], [G]),
    "stride and dilation": ([9], [3], [G], [G], [3 * G]),
    "stride and dilation, apart by one": ([9], [3], [G], [G + 1], [2 * G]),
    "three strides are two dilations": ([5], [4], [2 * G], [3 * G], [6 * G]),
    "just below 32 bits": ([9], [3], [G - 1], [G - 1], [G - 1]),
    "a stride alone": ([9], [3], [G << 9], [1], [0]),
    "nothing meets": ([9], [2], [1], [2 * G], [G]),
    "the first tap alone": ([9], [2], [2], [2 * G], [0, 2 * G]),
    "the last tap alone": ([9], [2], [2], [2 * G], [2 * G, 0]),
    "63 bits": ([9], [3], [1 << 61], [1], [1 << 62]),
    "one axis of two": ([5, 6], [3, 3], [G, 1], [1, 2], [G, 1]),
    "both axes": ([5, 6], [3, 2], [1, G], [G, G + 7], [G, G]),
    "the first of three": ([3, 4, 5], [2, 2, 3], [G, 1, 2], [G, 2, 1], [G, 1, 1]),
}
"""Padding of one axis may have two sides."""
NOT_PYTORCHS = ("the first tap alone", "the last tap alone", "63 bits")
"""Cases with padding of two sides, and with more padding than PyTorch takes."""


def sums(x: np.ndarray, w: np.ndarray, groups: int, outputs, at) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The convolution, and its gradients for a dy of the output's own numbers, tap by tap; ``at(output, tap)`` is the
    place in the input, or None."""
    y, (ic, oc) = np.zeros((x.shape[0], w.shape[0], *outputs)), (x.shape[1] // groups, w.shape[0] // groups)
    met = [(q, t, at(q, t)) for q in np.ndindex(*outputs) for t in np.ndindex(*w.shape[2:])]
    met = [each for each in met if each[2] is not None]
    every, dx, dw = slice(None), np.zeros(x.shape), np.zeros(w.shape)
    groups_of = [(slice(g * ic, g * ic + ic), slice(g * oc, g * oc + oc)) for g in range(groups)]
    for (q, t, place), (i, o) in itertools.product(met, groups_of):
        y[(every, o, *q)] += x[(every, i, *place)] @ w[(o, every, *t)].T
    for (q, t, place), (i, o) in itertools.product(met, groups_of):
        dx[(every, i, *place)] += y[(every, o, *q)] @ w[(o, every, *t)]
        dw[(o, every, *t)] += y[(every, o, *q)].T @ x[(every, i, *place)]
    return y, dx, dw


def case_of(name: str, groups: int = 1):
    sizes, taps, strides, dilations, padding = CASES[name]
    pads = [tuple(padding)] if len(padding) > len(sizes) else [(p, p) for p in padding]
    random = np.random.default_rng(3)
    x = random.integers(-2, 3, (2, 2 * groups, *sizes)).astype(np.float32)
    w = random.integers(-2, 3, (3 * groups, 2, *taps)).astype(np.float32)
    outputs = [
        (i + sum(p) - d * (k - 1) - 1) // s + 1
        for i, k, s, d, p in zip(sizes, taps, strides, dilations, pads, strict=True)
    ]

    def at(output, tap):
        place = [
            q * s + t * d - p
            for q, t, s, d, (p, _) in zip(output, tap, strides, dilations, pads, strict=True)
        ]  # fmt: skip
        return tuple(place) if all(0 <= p < i for p, i in zip(place, sizes, strict=True)) else None

    options = {"stride": strides, "dilation": dilations, "padding": pads, "groups": groups}
    return x, w, options, sums(x, w, groups, outputs, at)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_direction(name, groups, layout):
    x, w, options, (y, dx, dw) = case_of(name, groups)

    def last(array):
        return array if layout == "nchw" else np.ascontiguousarray(np.moveaxis(array, 1, -1))

    dy, options = y.astype(np.float32), {**options, "layout": layout}
    np.testing.assert_array_equal(cd.conv(last(x), last(w), **options), last(y))
    bias = np.arange(len(w), dtype=np.float32)
    got = cd.conv(last(x), cd.constant(last(w)), bias, activation="relu", residual=last(dy), **options)
    np.testing.assert_array_equal(got, last(np.maximum(0, 2 * y + bias.reshape(-1, *[1] * (x.ndim - 2)))))
    held = np.full(last(x).shape, 2, np.float32)
    cd.conv_backward_data(last(dy), last(w), held.shape, out=held, accumulate=True, **options)
    np.testing.assert_array_equal(held, last(dx) + 2)
    got = cd.conv_backward_weights(last(x), last(dy), last(w).shape, **options)
    np.testing.assert_array_equal(got, last(dw))


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_PYTORCHS])
def test_pytorchs_doors(name):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct

    x, w, options, (y, dx, dw) = case_of(name)
    options["padding"] = [near for near, _ in options["padding"]]
    rank = x.ndim - 2
    plain = getattr(torch.nn.functional, f"conv{rank}d")
    np.testing.assert_array_equal(plain(torch.from_numpy(x), torch.from_numpy(w), **options).numpy(), y)
    with ct.enable():
        for call in (plain, getattr(ct, f"conv{rank}d")):
            given = [torch.from_numpy(array.copy()).requires_grad_() for array in (x, w)]
            got = call(*given, **options)
            got.backward(torch.from_numpy(y.astype(np.float32)))
            np.testing.assert_array_equal(got.detach().numpy(), y)
            np.testing.assert_array_equal(given[0].grad.numpy(), dx)
            np.testing.assert_array_equal(given[1].grad.numpy(), dw)
        again = getattr(torch.nn.functional, f"conv_transpose{rank}d")
        axes = zip(
            x.shape[2:], y.shape[2:], w.shape[2:], *(options[n] for n in ("stride", "dilation", "padding")), strict=True
        )
        if all(i == (o - 1) * s - 2 * p + d * (k - 1) + 1 for i, o, k, s, d, p in axes):
            got = again(torch.from_numpy(y.astype(np.float32)), torch.from_numpy(w), **options)
            np.testing.assert_array_equal(got.numpy(), dx)


def test_transposed_and_same():
    x, w = np.arange(9, dtype=np.float32).reshape(1, 1, 9), np.ones((1, 1, 3), np.float32)
    np.testing.assert_array_equal(cd.conv(x, w, padding="same", dilation=1 << 40), x)
    np.testing.assert_array_equal(cd.conv_transpose(x, w, padding=G, dilation=G), x)
    got = cd.conv_transpose(x, w, stride=G, padding=4 * G)  # what stays of 9 pixels, far apart
    np.testing.assert_array_equal(got, [[[4, 4, 4]]])
    numbers = {"padding": np.int64(G), "dilation": np.int64(G)}
    np.testing.assert_array_equal(cd.conv(x, w, **numbers), x)


def test_models_of_onnx_and_nets():
    onnx = pytest.importorskip("onnx")
    from convdispatch import inference, nn
    from convdispatch import onnx as door

    x, w, _, (y, _, _) = case_of("dilation and padding")
    held = onnx.helper
    node = held.make_node("Conv", ["x", "w"], ["y"], pads=[G, G], dilations=[G])
    ends = [
        held.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape) for name, array in (("x", x), ("y", y))
    ]
    graph = held.make_graph([node], "far", ends[:1], ends[1:], [onnx.numpy_helper.from_array(w, "w")])
    np.testing.assert_array_equal(door.InferenceSession(held.make_model(graph)).run(None, {"x": x})[0], y)
    net = nn.Sequential(nn.Conv2d(2, 2, 3, dilation=G, padding=G))
    image = np.ones((1, 2, 9, 9), np.float32)
    assert inference.build(net, image.shape)(image).shape == image.shape


def test_jax():
    jax = pytest.importorskip("jax")
    import convdispatch.jax as cj

    x, w, _, (y, _, _) = case_of("dilation and padding")
    arrays = jax.numpy.asarray(x), jax.numpy.asarray(w), (1,), [(G, G)]
    np.testing.assert_array_equal(cj.conv_general_dilated(*arrays, rhs_dilation=(G,)), y)


def test_texts():
    text = f"fwd_f32_mb1ic1iw9oc1kw3pw{G}dw{G}"
    assert "taps and outputs that meet the input alone: fwd_f32_mb1ic1iw9oc1kw1;" in str(cd.explain(text)).replace(
        "\n     ", " "
    )
    assert cd.find(text, budget_ms=20)[0].solver.endswith("+reduced")


def test_the_rewriting_is_exact(monkeypatch):
    """Against all pairs of an output and a tap, for numbers of which a hundred is far."""
    monkeypatch.setattr(reach, "MAX_REACH", 16)
    pick, count = random.Random(3), 0

    def met(i, k, o, s, d, p):
        pairs = itertools.product(range(k), range(o))
        return {(t, q): q * s + t * d - p for t, q in pairs if 0 <= q * s + t * d - p < i}

    while count < 4000:
        i, k = pick.randint(1, 12), pick.randint(1, 5)
        s, d = (pick.choice([1, 1, 2, 3, pick.randint(1, 200), 64, 128, 129]) for _ in range(2))
        p, p_r = (pick.choice([0, 1, pick.randint(0, 600), 128, 256]) for _ in range(2))
        o = (i + p + p_r - d * (k - 1) - 1) // s + 1
        if not 1 <= o <= 300 or d * (k - 1) + 1 > i + p + p_r:
            continue
        count += 1
        expected, cut = met(i, k, o, s, d, p), reach._cut(i, k, o, s, d, p)
        assert cut.meets == bool(expected)
        if expected:
            assert min(cut.p, cut.p_r, cut.first_i) >= 0
            assert (cut.i + cut.p + cut.p_r - cut.d * (cut.k - 1) - 1) // cut.s + 1 == cut.o
            got = met(cut.i, cut.k, cut.o, cut.s, cut.d, cut.p)
            assert {(t + cut.first_k, q + cut.first_o): at + cut.first_i for (t, q), at in got.items()} == expected


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"padding": 1 << 40}, MemoryLimit, "y of shape (1, 1, 2199023255559) takes"),
        ({"padding": 1 << 62}, MemoryLimit, "take smaller batches, images or padding"),
        ({"padding": 1 << 63}, InvalidProblem, "pw must be below 2**63"),
        ({"padding": 1 << 80, "stride": 1 << 80}, InvalidProblem, "below 2**63"),
        ({"padding": -G}, InvalidArgument, "padding must be 0 or more"),
        ({"dilation": -G}, InvalidArgument, "dilation must be 1 or more"),
        ({"dilation": G}, InvalidProblem, "the kernel must fit into the padded input"),
    ],
)
def test_what_cannot_be_is_said(options, error, words):
    x, w = np.ones((1, 1, 9), np.float32), np.ones((1, 1, 3), np.float32)
    with pytest.raises(error) as caught:
        cd.conv(x, w, **options)
    assert words in str(caught.value)


def test_integers_of_8_bits_are_refused_in_one_sentence():
    x, w = np.ones((1, 1, 9), np.uint8), np.ones((1, 1, 3), np.int8)
    with pytest.raises(NoSolver, match="places, with padding and 64 strides and dilations, got"):
        cd.conv(x, w, padding=G, dilation=G, quantization=cd.Quantization())


def test_a_stride_of_a_million_phases():
    dy = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    got = cd.conv_backward_data(dy, np.ones((1, 1, 1, 1), np.float32), (1, 1, 1500, 1500), stride=1000)
    expected = np.zeros_like(got)
    expected[..., ::1000, ::1000] = dy
    np.testing.assert_array_equal(got, expected)
    assert phase_count(ConvProblem.parse("bwd_data_f32_mb1ic1ih1500iw1500oc1kh1kw1sh1000sw1000")) == 1_000_000


def test_nothing_is_printed_and_the_process_goes_on():
    code = (
        "import numpy as np, convdispatch as cd\nx, w = np.ones((1, 1, 9), 'f'), np.ones((1, 1, 3), 'f')\n"
        "for o in ({'padding': 2**31, 'stride': 2**31}, {'padding': 2**31, 'dilation': 2**31}):\n"
        "    cd.conv(x, w, **o); cd.conv(x, w, **o)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
