"""The small convolutional net that ``convdispatch train`` trains."""

from __future__ import annotations

import numpy as np
import pyopencl as cl

from ..nn import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Sequential


def small_net(
    channels: int,
    size: tuple[int, int],
    classes: int,
    *,
    dropout: float = 0.0,
    queue: cl.CommandQueue | None = None,
    seed: int = 0,
) -> Sequential:
    """Two 3×3 convolutions with 32 and 64 channels, each relu and halved by max pooling; linear to 128, relu, classes.

    Pictures ``[mb, channels, *size]`` to logits ``[mb, classes]``; sizes are 4 or more.
    """
    rng = np.random.default_rng(seed)
    features = 64 * (size[0] // 4) * (size[1] // 4)
    dropouts = [Dropout(dropout, queue=queue, seed=seed)] if dropout else []
    return Sequential(
        Conv2d(channels, 32, 3, padding=1, activation="relu", queue=queue, rng=rng),
        MaxPool2d(2),
        Conv2d(32, 64, 3, padding=1, activation="relu", queue=queue, rng=rng),
        MaxPool2d(2),
        Flatten(),
        Linear(features, 128, activation="relu", queue=queue, rng=rng),
        *dropouts,
        Linear(128, classes, queue=queue, rng=rng),
    )
