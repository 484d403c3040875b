"""Training of a small net on pictures: ``convdispatch train``.

- ``data``: data sets.
- ``loop``: the training loop.
- ``run``: the state of one training run.
"""

from .data import Pictures, load
from .loop import TrainReport, train
from .run import Settings, small_net

__all__ = ["Pictures", "Settings", "TrainReport", "load", "small_net", "train"]
