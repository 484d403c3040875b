"""The variants for CPUs: vectors run along channels, one work item a run of tiles, no barriers."""
