"""The common part of the integrations into frameworks (``convdispatch/torch``, ``convdispatch/jax``), which themselves
have the registration, streams and gradients. Nothing here depends on a framework.

- ``autotune``: measures candidates in the background.
- ``fallback``: what ``enable`` returns, why a call is left to the framework, the device that is its CPU.
- ``sizes``: decides which calls on a CPU wait for their kernel.
- ``tiers``: runs the framework's kernel until ours is compiled.
"""
