"""A net of a few layers of every kind, the same in PyTorch, and what both are given."""

from __future__ import annotations

import numpy as np

from convdispatch.nn import AvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Sequential
from convdispatch.tensor import Tensor


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net(queue, layout="nchw", seed=0):
    rng, common = np.random.default_rng(seed), {"layout": layout, "queue": queue}
    return Sequential(
        Conv2d(3, 8, 3, padding=1, bias=False, rng=rng, **common),
        BatchNorm2d(8, activation="relu", **common),
        MaxPool2d(3, 2, 1, layout=layout),
        Conv2d(8, 6, 3, stride=2, groups=2, activation="relu", rng=rng, **common),
        AvgPool2d(2, 1, layout=layout),
        Flatten(layout=layout),
        Linear(6 * 2 * 2, 5, layout=layout, queue=queue, rng=rng),
    )


def torch_net(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        nn.Conv2d(8, 6, 3, stride=2, groups=2),
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2, 1)),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, 5),
    )


def given(x, layout, queue):
    return Tensor.from_numpy(x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1)), queue)


LABELS = np.array([0, 3, 4, 1], np.int32)
