"""Operators with schemas and fake kernels, which ``torch.compile`` and ``torch.export`` take whole."""
