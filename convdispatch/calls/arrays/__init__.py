"""Arrays of any library as operands: where they lie, on which stream, and results of the same kind."""
