"""Replay of recordings: memory laid out, commands scheduled on queues or captured as CUDA graphs."""
