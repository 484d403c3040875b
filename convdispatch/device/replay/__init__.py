"""Recordings that are replayed: memory laid out once, commands on queues or captured as CUDA graphs.

- ``arena``: one block of memory for all slots of a recording.
- ``cuda_replay``: a recording on a CUDA stream.
- ``program``: a recording prepared to run on queues.
- ``schedule``: which command runs on which queue.
"""
