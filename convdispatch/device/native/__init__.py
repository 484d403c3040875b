"""The native call path: a small, optional compiled module that launches what Python has decided. It contains launches
and no policy.

- ``build``: builds the module.
- ``loading``: loads it, or returns the reason why not.
"""
