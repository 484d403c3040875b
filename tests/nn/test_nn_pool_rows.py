"""Pooling forward in vectors on CPUs: widths around 4, 8 and 16, strides, padding and dilation, NaN and infinities."""

import numpy as np
import pytest
from pooling import windows

from convdispatch.nn import Tape, functional
from convdispatch.tensor import Tensor

# (kernel, stride, padding, dilation, ceil_mode)
FORMS = {
    "3x3 s2": ((3, 3), (2, 2), 0, 1, False),
    "3x3 s2 ceil": ((3, 3), (2, 2), 0, 1, True),
    "3x3 s2 p1": ((3, 3), (2, 2), 1, 1, False),
    "3x3 s1 p1": ((3, 3), (1, 1), 1, 1, False),
    "2x2 s2 ceil": ((2, 2), (2, 2), 0, 1, True),
    "2x3 s1,2 one-sided": ((2, 3), (1, 2), ((1, 0), (0, 2)), 1, False),
    "3x2 s2,1 d2,3": ((3, 2), (2, 1), 1, (2, 3), False),
    "3x3 s3": ((3, 3), (3, 3), 1, 1, False),
    "1x1": ((1, 1), (1, 1), 0, 1, False),
}
SIZES = [(5, 4, 4), (7, 7, 8), (9, 13, 17), (6, 16, 3), (5, 33, 21)]
"""Height, width and channels; each form takes one of them in each layout, by turns, with --full three in both."""


def fits(size, form):
    kernel, _, padding, dilation, _ = form
    dilation = (dilation, dilation) if isinstance(dilation, int) else dilation
    pads = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    return all(n + sum(p) > d * (k - 1) for n, p, d, k in zip(size, pads, dilation, kernel))


def pooled(function, x, form, layout, queue, **more):
    kernel, stride, padding, dilation, ceil = form
    given = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    more |= {"dilation": dilation, "ceil_mode": ceil, "layout": layout}
    y = function(Tensor.from_numpy(given, queue), kernel, stride, padding, **more).numpy()
    return y if layout == "nchw" else y.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", FORMS)
def test_windows_of_every_width(queue, full, layout, name):
    form, rng = FORMS[name], np.random.default_rng(0)
    turn = list(FORMS).index(name)
    places = [place for place in range(turn, turn + 3) if fits(SIZES[place % len(SIZES)][:2], form)]
    for place in places if full else [places[0 if layout == "nhwc" else -1]]:
        *size, channels = SIZES[place % len(SIZES)]
        dtype = np.float64 if place % 3 == 0 else np.float32
        x = rng.standard_normal((2, channels, *size)).astype(dtype)
        x[0, 0] = -np.inf
        x[1, 1, 0, 0], x[1, 2, -1, -1] = np.inf, np.nan
        taken, _ = windows(x, *form[:4], -np.inf, form[4])
        got = pooled(functional.max_pool, x, form, layout, queue)
        np.testing.assert_array_equal(got, taken.max(-1), err_msg=str(size))
        with Tape() as tape:  # with notes of where the largest stood
            noted = lambda given, *window, **more: functional.max_pool(tape.watch(given), *window, **more)  # noqa: E731
            np.testing.assert_array_equal(pooled(noted, x, form, layout, queue), got, err_msg=str(size))
        x = rng.integers(-8, 8, x.shape).astype(dtype)
        taken, inside = windows(x, *form[:4], 0, form[4])
        got = pooled(functional.avg_pool, x, form, layout, queue, count_include_pad=False)
        np.testing.assert_allclose(got, taken.sum(-1) / inside.sum(-1), rtol=1e-6, err_msg=str(size))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_infinities_of_both_signs_are_no_nan(queue, layout):
    x = np.random.default_rng(1).standard_normal((1, 18, 6, 20)).astype(np.float32)
    x[:, :, 2, 3], x[:, :, 2, 4], x[:, 5, 4, 11] = np.inf, -np.inf, np.nan
    form = FORMS["3x3 s1 p1"]
    got = pooled(functional.max_pool, x, form, layout, queue)
    np.testing.assert_array_equal(got, windows(x, *form[:4], -np.inf, form[4])[0].max(-1))


def test_a_mean_counts_the_padding_where_it_is_told_to(queue):
    x = np.ones((1, 16, 7, 16), np.float32)
    form = FORMS["3x3 s1 p1"]
    for layout in ("nchw", "nhwc"):
        got = pooled(functional.avg_pool, x, form, layout, queue, count_include_pad=True)
        np.testing.assert_allclose(got, windows(x, *form[:4], 0, form[4])[0].sum(-1) / 9, rtol=1e-6)


def test_a_row_too_wide_to_hold_is_pooled_as_before(queue):
    x = np.random.default_rng(2).standard_normal((1, 1, 2, 20000)).astype(np.float32)
    form = ((2, 2), (2, 2), 0, 1, False)
    np.testing.assert_array_equal(
        pooled(functional.max_pool, x, form, "nchw", queue), windows(x, *form[:4], -np.inf, form[4])[0].max(-1)
    )
