"""Well-known nets, as modules: a file a family, and ``catalogue`` to make one by its name."""
