"""Recordings that are replayed: memory laid out once, commands on queues or on a stream.

- ``arena``: one block for all memory of a recording.
- ``program``: a recording made ready to run.
- ``schedule``: which command runs on which queue.
"""
