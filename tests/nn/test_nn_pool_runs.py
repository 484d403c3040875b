"""A GPU's pooling in runs of neighbours: the same bits as one element a work item."""

from __future__ import annotations

import numpy as np
import pytest
from as_gpu import as_gpu
from small_net import normal

from convdispatch.nn import Tape, functional
from convdispatch.nn.pooling import pooling2d
from convdispatch.tape import Rectified
from convdispatch.tensor import Tensor

WINDOWS = {  # kernel, stride, padding, dilation, ceil_mode, height, width
    "apart": (2, 2, 0, 1, False, 6, 16),
    "apart, two of a row": (2, 2, 0, 1, False, 6, 12),
    "apart, odd height": (2, 2, 0, 1, False, 7, 16),
    "apart, wide gaps": ((2, 2), (3, 3), 0, 1, False, 8, 24),
    "apart, dilated": (2, 4, 0, 3, False, 8, 32),
    "a gap at the end": (2, 2, 0, 1, False, 6, 17),
    "threes": (3, 3, 0, 1, False, 9, 24),
    "rows that begin anywhere": (2, 2, 0, 1, True, 7, 15),
    "overlapping": (3, 2, 0, 1, False, 9, 17),
    "overlapping, last cut": (3, 2, 0, 1, True, 8, 16),
    "overlapping, padded": (3, 1, 1, 1, False, 5, 8),
    "overlapping, dilated, padded": (3, 2, 1, 2, False, 13, 19),
    "a single column": ((4, 1), (4, 1), 0, 1, False, 8, 8),
    "four a row": ((1, 4), (1, 4), 0, 1, False, 3, 32),
    "large": (5, 5, 0, 1, False, 10, 40),  # more values than registers: one a work item
}


@pytest.fixture
def pooled(queue, monkeypatch):
    """``pooled(run, ...)``: a pooling and its gradient as a GPU computes them with so many neighbours at most."""
    as_gpu(monkeypatch, pooling2d)

    def compute(run, function, x, dy, gated, start):
        monkeypatch.setattr(pooling2d, "_RUN", run)
        pooling2d._launches.cache_clear()

        def lie(array):
            """A tensor that begins so many elements into its memory."""
            memory = Tensor.from_numpy(np.concatenate([np.zeros(start, np.float32), array.ravel()]), queue)
            return memory[start:].reshape(array.shape)

        given = lie(x)
        plain = function(given).numpy()
        with Tape() as tape:
            tape.watch(given)
            if gated:
                tape._rectified.add(given.mark)
            y = function(given)
        (dx,) = [note[2](lie(dy)) for note in tape._notes]
        assert (type(dx[0]) is Rectified) == gated
        return plain, y.numpy(), dx[0].numpy()

    yield compute
    pooling2d._launches.cache_clear()


KINDS = ["max", "max, after a relu", "average"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WINDOWS)
def test_runs_have_the_bits_of_single_elements(pooled, full, kind, name):
    """Each window in two of the three kinds and at two of the three starts, by turns; with --full in all."""
    turn = list(WINDOWS).index(name) + KINDS.index(kind)
    if not full and turn % 3 == 2:
        pytest.skip("thinned out; --full runs it")
    kernel, stride, padding, dilation, ceil, h, w = WINDOWS[name]
    x = normal(3, 5, h, w)
    if kind != "average":
        x = x.round(1)  # with equal values
        x[0, 1, 2:4, :8], x[1, 2, :, 3] = -np.inf, np.nan
        options = {"dilation": dilation, "ceil_mode": ceil}
        function = functional.max_pool
    else:
        function = functional.avg_pool
        options = {"dilation": dilation, "ceil_mode": ceil, "count_include_pad": False}

    def pool(t):
        return function(t, kernel, stride, padding, **options)

    shape = pool(Tensor.from_numpy(x)).shape
    dy, gated = normal(*shape, seed=1), kind == "max, after a relu"
    for start in (0, 3, 4) if full else (0, 3 + turn // 3 % 2):
        expected = pooled(1, pool, x, dy, gated, start)
        assert expected[0].tobytes() == expected[1].tobytes()
        for run in (2, 4):
            for got, wanted in zip(pooled(run, pool, x, dy, gated, start), expected, strict=True):
                assert got.tobytes() == wanted.tobytes(), f"runs of {run}, {start} elements into the memory"


def test_vggs_and_googlenets_poolings_go_in_runs(pooled, queue, monkeypatch):
    """Else nothing of the above would be used."""
    files = []
    real = pooling2d.kernel_text
    monkeypatch.setattr(pooling2d, "kernel_text", lambda package, file: files.append(file) or real(package, file))
    for kernel, options, size, backward in ((2, {}, 28, True), (3, {"stride": 2, "ceil_mode": True}, 28, False)):
        files.clear()
        x = normal(1, 2, size, size)
        pooled(2, lambda t: functional.max_pool(t, kernel, **options), x, normal(1, 2, 14, 14), True, 0)  # noqa: B023
        assert files.count("pool_runs.cl") == (5 if backward else 3)  # of a call without gradients one
