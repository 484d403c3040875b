"""The benchmark's output: a report as pages, figures, tables, comparisons and exports."""
