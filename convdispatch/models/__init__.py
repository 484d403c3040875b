"""Well-known nets, as modules only."""
