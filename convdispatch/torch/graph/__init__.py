"""Turns graphs of ATen operators, as Dynamo captures them, into executables: an inference form of ours (a recorded
program), or inductor's code with or without our convolutions. A new operator of forms goes to the ``aten_`` module of
its kind.

- ``aten_formulas``: operators that are formulas of elements, reductions, and places of extremes.
- ``aten_net``: a graph as a net of ours, operator by operator.
- ``aten_norms``: norms by a picture's own statistics, attention, distances, look-ups, pools.
- ``aten_shapes``: operators that move elements.
- ``channels_last``: convolutions of graphs for inference on a GPU read and write channels last.
- ``constants``: which inputs are weights, and whether they have changed.
- ``conversion``: ``convert``.
- ``engine_choice``: the race of a form and inductor, and its stored verdict.
- ``epilogues``: convolutions with what follows them as our operators.
- ``forms``: what runs a graph, for each set of input shapes.
- ``inductor``: what inductor compiles, and graphs operator by operator.
- ``learning``: passes over graphs that learn: their layout, batch norms in convolutions.
- ``operator_table``: the table of operators that forms have.
- ``prologue``: what PyTorch computes of integers before a form runs.
- ``quantized``: graphs that PT2E has quantized.
- ``report``: ``fusion``.
- ``specialised``: a graph for the sizes and weights of one call.
- ``tuning``: ``mode="max-autotune"``.
- ``upsampling``: upsampling kept whole.
"""
