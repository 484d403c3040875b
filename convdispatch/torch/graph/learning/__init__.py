"""Passes over graphs that learn. A new one goes here.

- ``channels_last``: the layout of the whole graph.
- ``training_norms``: batch norms as parts of convolutions.
- ``small_kernels``: kernels of few numbers, joined.
"""
