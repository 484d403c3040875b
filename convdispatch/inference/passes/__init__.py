"""Passes over a graph: each rewrites it into one that computes the same, faster.

- ``fusion``: convolutions take in what follows them.
- ``incremental_concat``: concatenations that are the first rows of the next one.
- ``integer_convolutions``: convolutions of integers as ones of numbers, where those are faster.
- ``integer_formulas``: element-wise formulas read and write integers.
- ``integer_nodes``: what passes over quantized nets share.
- ``integer_norms``: norms over channels of bytes, by tables.
- ``layout``: the graph with its pictures in another layout.
- ``padding``: zeros round a picture as a convolution's own padding.
- ``pointwise``: chains of element-wise operations as one formula.
- ``precision``: the graph in another dtype.
- ``quantization``: nothing leaves the integers between two quantizations.
- ``slicing``: images a few at a time through the first layers.
- ``views``: a view as a view of other memory with the same elements.
"""
