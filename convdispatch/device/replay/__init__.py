"""Recordings that are replayed: memory laid out once, commands on a queue or on a stream."""
