"""Minimal filtering on CPUs: register tiles over transformed tiles, one work item a run of them, no barriers."""
