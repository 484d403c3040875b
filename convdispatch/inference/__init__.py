"""The inference form of a net: traced once, fused, planned, recorded in one arena, and replayed.

``build(net, shape)`` runs ``trace``, the ``passes``, ``lower`` and ``device.replay`` in this order, for each layout
that is worth it, and returns the fastest form. A new rewriting of graphs goes to ``passes``.

- ``building``: a net to its fastest form.
- ``choice_cache``: which form was fastest, on disk.
- ``form_benchmark``: forms timed as they will be used.
- ``form_tiers``: the predicted form runs while the others are built in the background.
- ``graph``: values, nodes, and views of values.
- ``host_arrays``: a net on NumPy's arrays in place.
- ``layout_pruning``: which layouts of a net are built.
- ``lower``: a graph to a recording.
- ``net``: the form as it runs.
- ``passes``: rewritings of graphs.
- ``trace``: a net to a graph.
"""

from .building import build, problems
from .net import InferenceNet

__all__ = ["InferenceNet", "build", "problems"]
