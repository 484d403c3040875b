"""Training of a small net on pictures: ``convdispatch train``."""

from .data import Pictures, load
from .loop import TrainReport, train
from .net import small_net
from .run import Settings

__all__ = ["Pictures", "Settings", "TrainReport", "load", "small_net", "train"]
