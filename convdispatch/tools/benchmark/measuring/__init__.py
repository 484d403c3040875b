"""The benchmark's measurements: problems become times of solvers and peers.

A new peer is a module with a class ``Peer``, named in ``PEERS`` of ``peers``.

- ``run``: the ceilings, then problem by problem, written after each.
- ``session``: one problem: every solver, then the best, the chosen one and peers in the same rounds.
- ``peers``: what a peer is, and which there are.
- ``torch_peer``: PyTorch.
- ``onnx_peer``: onnxruntime.
"""
