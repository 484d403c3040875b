"""Recordings that are replayed: memory laid out once, commands on a queue or on a stream.

- ``arena``: one block of memory for all slots of a recording.
- ``program``: a recording prepared to run on a queue.
"""
