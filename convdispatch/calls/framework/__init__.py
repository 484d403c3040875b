"""What any framework's door needs. Nothing here knows a framework: a door (``convdispatch/torch``,
``convdispatch/jax``) has its registration, its streams and its gradients.

- ``autotune``: measures candidates in the background.
- ``enabled``: what a door's ``enable`` returns.
- ``fallback``: the reason why a call is the framework's own kernel's.
- ``host``: the OpenCL device that is a framework's CPU.
- ``sizes``: which calls on a CPU wait for their kernel.
- ``tiers``: the framework's kernel runs until ours is compiled.
"""
