"""The variants for GPUs."""
