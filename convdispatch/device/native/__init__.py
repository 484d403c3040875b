"""The native call path: a small compiled module that launches what Python decided once; optional. It holds launches and
no policy.

- ``build``: builds the module.
- ``loading``: loads it, or says why not.
"""
