"""The benchmark's measurements: problems become times of solvers and peers, in child processes."""
