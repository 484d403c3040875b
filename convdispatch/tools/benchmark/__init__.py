"""The per-layer benchmark: turns problems into times of every solver and of peers, and these into tables.

A new peer is a module with a class ``Peer``, named in ``PEERS`` of ``peers``, a new figure a function of ``summary``.

- ``run``: the ceilings, then problem by problem, written after each.
- ``session``: one problem: every solver, then the best, the chosen one and peers in the same rounds.
- ``peers``: what a peer is, and which there are.
- ``torch_peer``: PyTorch.
- ``onnx_peer``: onnxruntime.
- ``report``: what was measured, as values that are written as JSON.
- ``summary``: what a report says: a line a layer, sums a net, gaps.
- ``quiet``: whether the machine was quiet.
- ``terminal``: a report as tables in the terminal.
"""
