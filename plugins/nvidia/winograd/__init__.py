"""Winograd's minimal filtering with its products on tensor cores."""
