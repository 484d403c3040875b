"""Recordings that are replayed: memory laid out once, commands on queues or captured as CUDA graphs.

- ``arena``: one block for all memory of a recording.
- ``cuda_replay``: a recording on a CUDA stream.
- ``program``: a recording made ready to run.
- ``schedule``: which command runs on which queue.
"""
