"""The inference form of a net: traced once, fused, recorded with its memory laid out, and replayed.

``build(net, shape)`` goes through ``trace`` (operations to a graph), ``fuse`` (what convolutions take in), ``layout``
(pictures the other way), ``lower`` (a graph to recorded commands), ``arena`` and ``schedule`` (memory, queues) and
``program`` (bound launches).
"""

from .building import build, problems
from .net import InferenceNet

__all__ = ["InferenceNet", "build", "problems"]
