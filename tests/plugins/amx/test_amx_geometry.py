"""amx: places in rows, so that a tap is one offset; rows of pointwise convolutions; what tiles read is in the slot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from convdispatch_amx.convolve import TilesKernel, sizes_argument
from convdispatch_amx.geometry import flat_of, merged
from hypothesis import given
from strategies import FUZZ, problems

from convdispatch import ConvProblem
from convdispatch.api.geometry import TensorLayout, geometry_of


def laid_out(geometry, flat, part: int) -> np.ndarray:
    """Where each position of a part reads, by the kernel's rules: an element of one channel, all images; -1: a zero."""
    rows = np.arange(geometry.images * flat.rows + flat.beyond)
    image, rest = rows // flat.rows, rows % flat.rows
    tall, size = flat.axes[1].pitch, geometry.source.size
    first = [remainder + axis.first for remainder, axis in zip(flat.parts[part], flat.axes, strict=True)]
    d, h = rest // tall * geometry.step[0] + first[0], rest % tall * geometry.step[1] + first[1]
    w = np.arange(flat.pitch) * geometry.step[2] + first[2]
    there = (image < geometry.images) & (d >= 0) & (d < size[0]) & (h >= 0) & (h < size[1])
    inside = there[:, None] & (w >= 0) & (w < size[2])
    return np.where(inside, (((image * size[0] + d) * size[1] + h) * size[2])[:, None] + w, -1).ravel()


def check_flat(problem: ConvProblem) -> None:
    """A tap is one offset: from every place it finds the element that the geometry says, or a zero."""
    geometry = geometry_of(problem)
    written = np.zeros(geometry.target.size, int)
    flat = flat_of(geometry)
    parts = [laid_out(geometry, flat, part) for part in range(len(flat.parts))]
    for phase, taps in zip(geometry.phases, flat.taps, strict=True):
        at = [f + np.arange(n) * step for f, n, step in zip(phase.first, phase.count, geometry.out_step, strict=True)]
        written[np.ix_(*at)] += 1
        assert len(taps) == phase.volume
        image, *place = np.ix_(range(geometry.images), *map(range, phase.count))
        position = ((image * flat.axes[0].pitch + place[0]) * flat.axes[1].pitch + place[1]) * flat.pitch + place[2]
        assert [tap.offset >= 0 for tap in taps] == [True] * len(taps)
        for tap, t in zip(taps, itertools.product(*map(range, phase.taps)), strict=True):
            kernel = [k + n * step for k, n, step in zip(phase.tap0, t, geometry.tap_step, strict=True)]
            assert tap.kernel == np.ravel_multi_index(kernel, geometry.kernel)
            read = [
                each * geometry.step[axis] + phase.origin[axis] + t[axis] * geometry.spread[axis]
                for axis, each in enumerate(place)
            ]
            size = geometry.source.size
            d, h, w = ((each >= 0) & (each < n) for each, n in zip(read, size, strict=True))
            element = ((image * size[0] + read[0]) * size[1] + read[1]) * size[2] + read[2]
            np.testing.assert_array_equal(parts[tap.part][position + tap.offset], np.where(d & h & w, element, -1))
    assert (written == 1).all()


GEOMETRY = [
    "mb2ic8ih7oc8kh3ph1",
    "mb3ic8ih4iw5oc8kh3kw4ph2pw1ph_r0pw_r3",
    "mb2ic8ih9iw8oc8kh3ph1sh2",
    "mb2ic8ih11iw9oc8kh5kw2ph2sh3sw2",
    "mb2ic8ih9oc8kh3ph2dh2",
    "mb1ic8ih13iw12oc8kh3ph3dh3sh2",
    "mb2ic8ih12oc8kh2sh4dh2",
    "mb2ic8ih3oc8kh3ph5",
    "mb2ic8ih9oc8kh1sh2",
    "mb2ic8ih9oc8kh2sh3",
    "mb2ic8iw19oc8kw4pw1sw2dw3",
    "mb2ic8id3ih4iw5oc8kd3kh2kw3pd1pw1sd2",
    "mb1ic8id5ih3iw6oc8kd2kh1kw3pd2ph0pw1sw2dd3",
]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("text", GEOMETRY)
def test_taps_are_offsets(text, direction):
    check_flat(ConvProblem.parse(f"{direction}_{text}"))


@FUZZ
@given(problems())
def test_taps_are_offsets_whatever_the_geometry(problem):
    check_flat(problem)


@pytest.mark.parametrize(
    ("text", "pitch"),
    [
        ("mb1ic8ih1iw7oc8kh1kw3pw1", 8),  # a border of 1 serves two rows
        ("mb1ic8ih1iw7oc8kh1kw1", 7),
        ("mb1ic8ih1iw7oc8kh1kw3pw0", 7),  # unpadded rows share nothing: as many positions as elements
        ("mb1ic8ih1iw7oc8kh1kw5pw2", 9),
        ("mb1ic8ih1iw7oc8kh1kw3pw2dw2", 9),
        ("mb1ic8ih1iw7oc8kh1kw3pw1pw_r0", 8),  # a border on one side is all of it
        ("mb1ic8ih1iw7oc8kh1kw3pw0pw_r1", 8),
        ("mb1ic8ih1iw7oc8kh1kw3pw2pw_r1", 9),
        ("mb1ic8ih1iw8oc8kh1kw3pw1sw2", 5),  # odd and even elements apart; a zero before the odd ones
        ("bwd_data_mb1ic8ih1iw7oc8kh1kw3pw1", 8),
    ],
)
def test_rows_share_their_zeros(text, pitch):
    geometry = geometry_of(ConvProblem.parse(text))
    assert flat_of(geometry).pitch == pitch


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("mb2ic8ih28oc8kh1", (1, 7, 112)),  # whole vectors
        ("mb2ic8ih14oc8kh1", (1, 2, 98)),
        ("mb2ic8ih7oc8kh1", (1, 1, 49)),
        ("mb2ic8ih4iw5oc8kh1", (1, 1, 20)),
        ("mb2ic8ih1iw7oc8kh1sh2sw1", (1, 1, 7)),
        ("mb2ic8id64ih1iw4oc8kd1kh1kw1sd1sh2sw1", (1, 2, 128)),
        ("g2mb2ic16id3ih2iw8oc16kd1kh1kw1", (1, 1, 48)),
        ("nhwc_mb2ic8ih28oc8kh1", (1, 7, 112)),
        ("mb2ic8ih3iw200oc8kh1", (1, 3, 200)),  # as it is: longer than a band should be
        ("mb2ic8iw40oc8kw1", (1, 1, 40)),
        ("mb2ic8ih28oc8kh1sh2", (1, 28, 28)),  # places that are not the pixels
        ("mb2ic8ih28oc8kh1ph1", (1, 28, 28)),
        ("mb2ic8ih28oc8kh3ph1", (1, 28, 28)),
    ],
)
def test_rows_of_pointwise_convolutions_are_merged(text, rows, direction):
    problem = ConvProblem.parse(text).replace(direction=direction)
    other = merged(problem)
    assert TensorLayout.of(other, "x").size == rows
    for tensor in "xwy":
        assert np.prod(getattr(other, f"{tensor}_shape")) == np.prod(getattr(problem, f"{tensor}_shape"))


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("text", GEOMETRY)
def test_what_tiles_read_lies_in_the_slot(text, direction, layout, rows):
    """The last tile of a band begins inside it and reads 32 positions from its furthest tap."""
    problem = ConvProblem.parse(text).replace(layout=layout, direction=direction)
    kernel = TilesKernel(problem, {"planes": 3, "rows": rows, "panels": 1, "items": 4})
    furthest = max(tap.offset for taps in kernel.flat.taps for tap in taps)
    assert kernel.rows * kernel.flat.pitch + furthest <= kernel.band_rows * kernel.flat.pitch
    assert kernel.band_rows * kernel.flat.pitch + 31 <= kernel.positions  # a tile, or what a vector writes too far
    assert kernel.area * len(kernel.flat.parts) * kernel.blocks <= kernel.sums_at
    # Sums, and turned ones; of two phases where these are neighbours in a row.
    sides = 2 if direction == "bwd_data" and layout == "nchw" and problem.sw == 2 else 1
    lists = 8 * (kernel.band_rows + len(kernel.taps) * kernel.rows) + 4 * kernel.steps
    assert kernel.sums_at + sides * 2 * 4096 + lists <= kernel.slot
    # Whole lines but where channels' places are read as they lie, which only one tap does.
    assert kernel.unit == (4 if layout == "nchw" and geometry_of(problem).volume == 1 else 64 * 3)


def test_one_program_serves_many_geometries():
    """Numbers are an argument; types, layouts, what follows a sum and, in NCHW, the step along rows are the text."""

    def text(problem: str) -> str:
        kernel = TilesKernel(ConvProblem.parse(problem), {"planes": 2, "rows": 5, "panels": 1, "items": 4})
        return kernel.text(kernel.sizes()[0])

    small = [each for each in GEOMETRY if len(flat_of(geometry_of(ConvProblem.parse(each))).parts) <= 5]
    assert len(small) > 9
    assert len({text(f"nhwc_{each}") for each in small}) == 1
    steps = {each: geometry_of(ConvProblem.parse(each)).step[2] for each in small if "kh1s" not in each}
    assert len({text(each) for each in steps}) == len(set(steps.values())) == 4
    assert text(GEOMETRY[0]) != text(f"nhwc_{GEOMETRY[0]}")
    assert text(GEOMETRY[0]) != text(GEOMETRY[0] + "+bias") != text(GEOMETRY[0] + "+bias+relu")


def test_what_is_passed():
    text, given = sizes_argument({"N": 3}, {"W": 1 << 40}, {"AT": ("int", [7, 8], 1), "LONG": ("long", range(65), 1)})
    assert np.frombuffer(given, np.int64)[0] == 1 << 40
    assert list(np.frombuffer(given, np.int32)[2:7]) == [3, 7, 8, 0, 0]
    assert "constant long LONG[] = {0, 1, " in text
    assert text == sizes_argument({"N": 9}, {"W": 0}, {"AT": ("int", [1, 2, 3], 1), "LONG": ("long", range(65), 1)})[0]
    with pytest.raises(OverflowError):
        sizes_argument({"N": 1 << 31}, {}, {})
