"""Training of a small net on pictures: ``convdispatch train``.

- ``batches``: batches gathered on the device.
- ``checkpoint``: a run's state in a file.
- ``curve``: a loss curve as text.
- ``data``: data sets.
- ``loop``: the training loop.
- ``net``: the small net.
- ``run``: the state of one training run.
"""

from .data import Pictures, load
from .loop import TrainReport, train
from .net import small_net
from .run import Settings

__all__ = ["Pictures", "Settings", "TrainReport", "load", "small_net", "train"]
