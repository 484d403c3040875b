"""What ``torch.compile`` and ``torch.export`` use of this package: operators with schemas, fake kernels and gradients,
and the back end ``convdispatch``. A new operator goes next to ``operators``.

- ``backend``: the back end, which chooses what computes each graph.
- ``fused_operator``: a convolution with a sum and an activation.
- ``normed_operators``: a convolution with a batch norm before it and the statistics of its result.
- ``operators``: convolution and its backward.
"""
