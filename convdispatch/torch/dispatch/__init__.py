"""Receives convolutions from PyTorch's dispatcher: an operator's arguments become a cached call.

- ``engine``: looks calls up.
- ``native``: tells the native call path what Python decided.
- ``quick_depthwise``: PyTorch's own depthwise kernel while ours is compiled.
- ``routing``: ``enable`` and ``disable``.
"""
