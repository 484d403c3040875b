"""The native call path: a small compiled module that launches what Python decided once. Optional; see ``loading``."""
