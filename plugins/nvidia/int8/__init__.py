"""Quantized convolutions on tensor cores; see ``product.cl.mako``."""
