"""The order of choice: rules, measured records, neighbours and lock files rank a problem's solvers."""
