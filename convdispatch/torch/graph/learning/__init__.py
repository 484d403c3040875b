"""Passes over Dynamo's graphs that learn, before AOTAutograd splits forward and backward. A new one goes here.

- ``channels_last``: the layout of the whole graph.
- ``training_norms``: batch norms as parts of convolutions.
"""
