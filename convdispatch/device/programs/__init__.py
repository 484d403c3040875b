"""Kernel text becomes programs: templates, compilers in processes, and caches of both on disk."""
