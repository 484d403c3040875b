"""Where commands go. A new kind of queue implements ``interface``.

- ``host_memory``: host memory on a CPU device's queue.
- ``interface``: what plans, products and layers see in a queue's place.
- ``queues``: OpenCL's queues.
- ``recording``: keeps commands, to be replayed.
"""
