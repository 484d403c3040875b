"""What any framework's door needs: why a call is left, a problem on the CPU, what ``enable`` answers, autotune.

Nothing here knows a framework; a door (``convdispatch/torch``, ``convdispatch/jax``) has its registration, its streams
and its gradients.
"""
