"""Layers: wrappers of the enqueue hook, switched on by ``CONVDISPATCH_LAYERS``, as the ICD loader's layers are."""
