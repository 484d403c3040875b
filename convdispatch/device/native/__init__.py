"""The native call path: a small, optional compiled module that launches what Python has decided. It contains launches
and no policy."""
