"""Receives convolutions from PyTorch's dispatcher: an operator's arguments become a cached call.

- ``engine``: looks up cached calls.
- ``native``: passes Python's decisions to the native call path.
- ``normed``: convolutions with a norm before them and sums of channels behind them, on our engines.
- ``quick_depthwise``: PyTorch's own depthwise kernel while ours is compiled.
- ``routing``: ``enable`` and ``disable``.
"""
