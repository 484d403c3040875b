"""The variants for CPUs."""
