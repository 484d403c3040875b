"""Padding, strides and dilations far beyond the input: refused in a sentence, never a crash or a wait."""

from __future__ import annotations

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


def case_of(name: str):
    sizes, taps, strides, dilations, padding = CASES[name]
    pads = [tuple(padding)] if len(padding) > len(sizes) else [(p, p) for p in padding]
    random = np.random.default_rng(3)
    x = random.integers(-2, 3, (2, 2, *sizes)).astype(np.float32)
    w = random.integers(-2, 3, (3, 2, *taps)).astype(np.float32)
    outputs = [
        (i + sum(p) - d * (k - 1) - 1) // s + 1
        for i, k, s, d, p in zip(sizes, taps, strides, dilations, pads, strict=True)
    ]
    options = {"stride": strides, "dilation": dilations, "padding": pads}
    return x, w, options, np.ones((2, 3, *outputs), np.float32)


@pytest.mark.parametrize("name", CASES)
def test_every_direction_is_refused_in_a_sentence(name):
    x, w, options, y = case_of(name)
    calls = (
        lambda: cd.conv(x, w, **options),
        lambda: cd.conv_backward_data(y, w, x.shape, **options),
        lambda: cd.conv_backward_weights(x, y, w.shape, **options),
    )
    for call in calls:
        with pytest.raises(NoSolver, match="places, with padding and 64 strides and dilations, got"):
            call()


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_PYTORCHS])
def test_pytorch_computes_what_is_refused(name):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct

    x, w, options, _ = case_of(name)
    options["padding"] = [near for near, _ in options["padding"]]
    plain = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
    expected = plain(torch.from_numpy(x), torch.from_numpy(w), **options)
    with ct.enable():
        assert torch.equal(plain(torch.from_numpy(x), torch.from_numpy(w), **options), expected)


@pytest.mark.parametrize("text", ["mb1ic1iw99oc1kw3pw4000dw2000", "mb1ic1iw4000000oc1kw2000001pw1000000sw500"])
def test_what_is_large_within_reach_is_not_refused(text):
    assert reach.out_of_reach(ConvProblem.parse(text)) is None


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
