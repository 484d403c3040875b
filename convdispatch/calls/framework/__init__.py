"""The common part of the integrations into frameworks (``convdispatch/torch``, ``convdispatch/jax``), which themselves
have the registration, streams and gradients. Nothing here depends on a framework.

- ``autotune``: measures candidates in the background.
- ``enabled``: the object that an integration's ``enable`` returns.
- ``fallback``: the reason why the framework's own kernel computes a call.
- ``host``: the OpenCL device that is a framework's CPU.
- ``sizes``: decides which calls on a CPU wait for their kernel.
- ``tiers``: runs the framework's kernel until ours is compiled.
"""
