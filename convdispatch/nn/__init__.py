"""The thin framework, everything of a net that is not convolution: layers, losses, tape, optimisers, checkpoints.

``functional`` has the operations of tensors, ``layers`` the modules that call them with parameters of their own. A new
operation goes to a module of its own, with its kernel beside it, and into ``functional``; a new layer into ``layers``.
Names are imported when first used: PyTorch's door wants one kernel of pooling, not all of this, in its first step.

- ``activations``: activations by name.
- ``attention``: scaled dot-product attention.
- ``channel_sums``: a bias' gradient with channels last.
- ``convolution``: convolutions, transposed convolutions and linear maps on the tape.
- ``functional``: all operations, by the names that users import.
- ``layers``: layers with parameters.
- ``losses``: softmax, cross-entropy, mean squares.
- ``modules``: parts of a net, their names and values.
- ``normalization``: norms by batch, by group, by neighbours.
- ``optim``: optimisers.
- ``pooling``: pooling.
- ``quantized``: operations on integers of 8 bits.
- ``tape``: what was computed, in order, so that gradients can be computed backwards.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())


def __dir__() -> list[str]:
    return __all__
