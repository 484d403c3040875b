"""Caches: bounded ones in memory, and the store of artifacts that travel between machines."""
